//! Instructions between registers.

use super::{Case, In, N, Thread, case};
use kiln_codegen::ptx::{
    AtomicOp, BF16, Builder, Compare, F16, F32, F64, Half, LoadKind, Number, S32, Size, U16, U32, U64, Val,
};

/// A word of a predicate.
fn word(b: &mut Builder, cond: Val<kiln_codegen::ptx::Pred>) -> Val<U32> {
    b.selp::<U32>(1, 0, cond)
}

/// A word of both halves.
fn fold(b: &mut Builder, value: Val<U64>) -> Val<U32> {
    let shifted = b.shr(value, 32);
    let (low, high) = (b.cvt::<U32, _>(value), b.cvt::<U32, _>(shifted));
    let high = b.mul(high, 3);
    b.xor(low, high)
}

const fn folded(value: u64) -> u32 {
    (value as u32) ^ ((value >> 32) as u32).wrapping_mul(3)
}

/// The bits of a value, through the thread's scratch memory.
fn stored<T: Number>(b: &mut Builder, i: In, value: Val<T>) -> Val<U32> {
    b.st(i.own.cast::<T>(), value);
    let bits = b.ld(i.own.cast::<U64>(), LoadKind::Ordinary);
    fold(b, bits)
}

fn wide(t: Thread) -> (u64, u64) {
    (u64::from(t.x()) | u64::from(t.y()) << 32, u64::from(t.z()) << 7 | 1)
}

fn bits(value: f32) -> u32 {
    value.to_bits()
}

/// Folds the results of arithmetic in one type into one word.
fn arithmetic<T: Number>(b: &mut Builder, i: In, x: Val<T>, y: Val<T>) -> Val<U32> {
    let results = [b.add(x, y), b.sub(x, y), b.mul(x, y), b.div(x, y), b.min(x, y), b.max(x, y)];
    let mut all = b.mov::<U32>(0);
    for result in results {
        let result = stored(b, i, result);
        let scaled = b.mul(all, 31);
        all = b.add(scaled, result);
    }
    for how in [Compare::Eq, Compare::Ne, Compare::Lt, Compare::Le, Compare::Gt, Compare::Ge] {
        let holds = b.setp(how, x, y);
        let holds = word(b, holds);
        all = b.mad(all, 2, holds);
    }
    all
}

/// What [`arithmetic`] gives: results as 64 bits, and how `x` and `y` compare.
fn expected<T: PartialOrd>(results: [u64; 6], x: T, y: T) -> u32 {
    let all = results.into_iter().fold(0u32, |all, result| all.wrapping_mul(31).wrapping_add(folded(result)));
    let holds = [x == y, x != y, x < y, x <= y, x > y, x >= y];
    holds.into_iter().fold(all, |all, holds| all.wrapping_mul(2).wrapping_add(u32::from(holds)))
}

macro_rules! integers {
    ($x:expr, $y:expr, $bits:ty) => {{
        let (x, y) = ($x, $y);
        let all = [x.wrapping_add(y), x.wrapping_sub(y), x.wrapping_mul(y), x.wrapping_div(y), x.min(y), x.max(y)];
        expected(all.map(|value| value as $bits as u64), x, y)
    }};
}

macro_rules! floats {
    ($x:expr, $y:expr) => {{
        let (x, y) = ($x, $y);
        expected([x + y, x - y, x * y, x / y, x.min(y), x.max(y)].map(|value| value.to_bits() as u64), x, y)
    }};
}

/// A number as a half precision one holds it.
fn halved(value: f32) -> f32 {
    let bits = value.to_bits();
    f32::from_bits((bits + 0xfff + (bits >> 13 & 1)) & !0x1fff)
}

/// The bits of a number of ordinary size in half precision.
fn half(value: f32) -> u16 {
    let bits = halved(value).to_bits();
    if bits << 1 == 0 {
        return (bits >> 16) as u16;
    }
    ((bits >> 16 & 0x8000) + (((bits & 0x7fff_ffff) - (112 << 23)) >> 13)) as u16
}

/// The small integer, exact in half precision, at a place of a matrix: A, B or C by `which`.
fn entry(which: u32, row: u32, column: u32) -> i32 {
    (row * 7 + column * 5 + which * 3 + row * column) as i32 % 15 - 7
}

/// The word of two neighbours along `k` in a matrix that a lane of `mma` holds.
fn element_pair(b: &mut Builder, which: u32, row: Val<U32>, k: Val<U32>) -> Val<U32> {
    let one = |b: &mut Builder, column: Val<U32>| {
        let value = element(b, which, row, column);
        b.cvt::<F16, _>(value)
    };
    let next = b.add(k, 1);
    let (low, high) = (one(b, k), one(b, next));
    b.pack(low, high)
}

/// [`entry`], computed on the device.
fn element(b: &mut Builder, which: u32, row: Val<U32>, column: Val<U32>) -> Val<F32> {
    let sum = b.mad::<U32>(row, 7, which * 3);
    let sum = b.mad::<U32>(column, 5, sum);
    let sum = b.mad::<U32>(row, column, sum);
    let sum = b.rem(sum, 15);
    let value = b.cvt::<F32, U32>(sum);
    b.sub(value, 7.0)
}

/// A case of `mma` over `depth` columns of A: the sum of a lane's four results, each times its place.
fn product(b: &mut Builder, depth: u32) -> Val<U32> {
    let lane = b.lane();
    let (row, pair) = (b.shr(lane, 2), b.and(lane, 3));
    let column = b.mul(pair, 2);
    let below = b.add(row, 8);
    let [mut a, mut k] = [Vec::new(), Vec::new()];
    for first in (0..depth).step_by(8) {
        let at = b.add(column, first);
        a.extend([element_pair(b, 0, row, at), element_pair(b, 0, below, at)]);
        k.push(element_pair(b, 1, row, at));
    }
    let next = b.add(column, 1);
    let places = [(row, column), (row, next), (below, column), (below, next)];
    let c = places.map(|(row, column)| element(b, 2, row, column));
    let d = match (a.as_slice(), k.as_slice()) {
        ([a0, a1, a2, a3], [b0, b1]) => b.mma_halves_k16([*a0, *a1, *a2, *a3], [*b0, *b1], c),
        ([a0, a1], [b0]) => b.mma_halves_k8([*a0, *a1], *b0, c),
        _ => unreachable!("8 or 16 columns"),
    };
    let [one, two, three, four] = d;
    let sum = b.fma(two, 2.0, one);
    let sum = b.fma(three, 3.0, sum);
    let sum = b.fma(four, 4.0, sum);
    b.mov_bits(sum)
}

/// What [`product`] gives.
fn multiplied(t: Thread, depth: u32) -> u32 {
    let lane = t.tid() % 32;
    let (row, column) = (lane / 4, lane % 4 * 2);
    let at = |row, column| {
        let products = (0..depth).map(|k| entry(0, row, k) * entry(1, column, k));
        products.sum::<i32>() + entry(2, row, column)
    };
    let sum = at(row, column) + 2 * at(row, column + 1) + 3 * at(row + 8, column) + 4 * at(row + 8, column + 1);
    bits(sum as f32)
}

pub(super) fn cases() -> Vec<Case> {
    let mut all = in_every_type();
    all.extend(of_floats());
    all.extend(of_bits());
    all.extend(conversions_and_choice());
    all.extend(between_lanes());
    all
}

fn in_every_type() -> Vec<Case> {
    vec![
        case("u32", |b, i| arithmetic(b, i, i.x, i.y), |t| integers!(t.x(), t.y(), u32)),
        case(
            "s32",
            |b, i| {
                let (x, y) = (b.mov_bits::<S32, _>(i.x), b.mov_bits::<S32, _>(i.y));
                arithmetic(b, i, x, y)
            },
            |t| integers!(t.x() as i32, t.y() as i32, u32),
        ),
        case(
            "u16",
            |b, i| {
                let [x, y] = b.unpack::<U16>(i.x);
                arithmetic(b, i, x, y)
            },
            |t| integers!(t.x() as u16, (t.x() >> 16) as u16, u16),
        ),
        case(
            "u64",
            |b, i| {
                let x = b.pack64(i.x, i.y);
                let z = b.cvt::<U64, U32>(i.z);
                let shifted = b.shl(z, 7);
                let y = b.or(shifted, 1u64);
                arithmetic(b, i, x, y)
            },
            |t| integers!(wide(t).0, wide(t).1, u64),
        ),
        case("f32", |b, i| arithmetic(b, i, i.f, i.g), |t| floats!(t.f(), t.g())),
        case(
            "f64",
            |b, i| {
                let x = b.index(i.doubles, i.thread);
                let x = b.ld(x, LoadKind::Constant);
                let (two, three) = (b.add(x, x), b.mul(x, x));
                let y = b.sub(three, two);
                arithmetic(b, i, x, y)
            },
            |t| floats!(t.double(), t.double() * t.double() - (t.double() + t.double())),
        ),
        case(
            "rem and mad",
            |b, i| {
                let rest = b.rem(i.x, i.y);
                b.mad(rest, i.y, i.z)
            },
            |t| (t.x() % t.y()).wrapping_mul(t.y()).wrapping_add(t.z()),
        ),
        case(
            "mad.hi",
            |b, i| b.mad_hi(i.x, i.y, i.z),
            |t| (((u64::from(t.x()) * u64::from(t.y())) >> 32) as u32).wrapping_add(t.z()),
        ),
        case(
            "mad.wide",
            |b, i| {
                let addend = b.pack64(i.x, i.y);
                let sum = b.mad_wide(i.y, i.z, addend);
                fold(b, sum)
            },
            |t| folded((u64::from(t.y()) * u64::from(t.z())).wrapping_add(wide(t).0)),
        ),
        case(
            "the halves of 64 bits",
            |b, i| {
                let whole = b.pack64(i.x, i.y);
                let [low, high] = b.unpack64(whole);
                let high = b.shl::<U32>(high, 1);
                b.xor::<U32>(low, high)
            },
            |t| t.x() ^ (t.y() << 1),
        ),
        case(
            "dp4a",
            |b, i| {
                let z = b.mov_bits::<S32, _>(i.z);
                let x = b.mov_bits::<S32, _>(i.x);
                let sum = b.dp4a::<S32>(x, i.y, z);
                let sum = b.dp4a::<U32>(i.x, i.y, sum);
                b.mov_bits(sum)
            },
            |t| {
                let signed = |word: u32, at: usize| i32::from(word.to_le_bytes()[at] as i8);
                let products = (0..4).map(|at| {
                    let (x, y) = (t.x().to_le_bytes()[at], signed(t.y(), at));
                    signed(t.x(), at) * y + i32::from(x) * y
                });
                (products.sum::<i32>() as u32).wrapping_add(t.z())
            },
        ),
        case(
            "vabsdiff4",
            |b, i| b.vabsdiff4(i.x, i.y, i.z),
            |t| {
                let signed = |word: u32, at: usize| word.to_le_bytes()[at] as i8;
                let distances = (0..4).map(|at| u32::from(signed(t.x(), at).abs_diff(signed(t.y(), at))));
                distances.sum::<u32>().wrapping_add(t.z())
            },
        ),
        case(
            "dp2a",
            |b, i| {
                let z = b.mov_bits::<S32, _>(i.z);
                let y = b.mov_bits::<S32, _>(i.y);
                let sum = b.dp2a::<S32>(Half::Low, i.x, y, z);
                let sum = b.dp2a::<U32>(Half::High, i.x, i.y, sum);
                b.mov_bits(sum)
            },
            |t| {
                let half = |at: u32| i32::from((t.x() >> (16 * at)) as i16);
                let y = t.y().to_le_bytes();
                let low: i32 = (0..2).map(|at| half(at as u32) * i32::from(y[at] as i8)).sum();
                let high: i32 = (0..2).map(|at| half(at as u32) * i32::from(y[2 + at])).sum();
                (low.wrapping_add(high) as u32).wrapping_add(t.z())
            },
        ),
    ]
}

fn of_floats() -> Vec<Case> {
    let approximate = Case {
        name: "ex2",
        build: |b, i| {
            let power = b.ex2_approx(i.f);
            b.mov_bits(power)
        },
        expected: |t| bits(t.f().exp2()),
        within: 256.0 / (1 << 20) as f32,
        sm: 80,
        own: false,
    };
    vec![
        approximate,
        case(
            "fma",
            |b, i| {
                let sum = b.fma(i.f, i.g, i.h);
                b.mov_bits(sum)
            },
            |t| bits(t.f().mul_add(t.g(), t.h())),
        ),
        case(
            "fma.f64",
            |b, i| {
                let x = b.index(i.doubles, i.thread);
                let x = b.ld(x, LoadKind::Constant);
                let (near, root) = (b.fma::<F64>(x, x, x), b.sqrt(x));
                let inverse = b.rcp(root);
                let sum = b.add(near, inverse);
                stored(b, i, sum)
            },
            |t| folded((t.double().mul_add(t.double(), t.double()) + 1.0 / t.double().sqrt()).to_bits()),
        ),
        case(
            "neg and abs",
            |b, i| {
                let (negative, absolute) = (b.neg(i.f), b.abs(i.g));
                let sum = b.add(negative, absolute);
                b.mov_bits(sum)
            },
            |t| bits(-t.f() + t.g().abs()),
        ),
        case(
            "rcp and sqrt",
            |b, i| {
                let root = b.sqrt(i.h);
                let inverse = b.rcp(root);
                b.mov_bits(inverse)
            },
            |t| bits(1.0 / t.h().sqrt()),
        ),
    ]
}

fn of_bits() -> Vec<Case> {
    vec![
        case(
            "and, or, xor",
            |b, i| {
                let both = b.and(i.x, i.y);
                let some = b.or(both, 0x1001u32);
                b.xor(some, i.z)
            },
            |t| ((t.x() & t.y()) | 0x1001) ^ t.z(),
        ),
        case(
            "shl and shr",
            |b, i| {
                let count = b.and(i.z, 63);
                let (left, right) = (b.shl(i.x, count), b.shr(i.y, count));
                let signed = b.mov_bits::<S32, _>(i.y);
                let arithmetic = b.shr(signed, count);
                let arithmetic = b.mov_bits::<U32, _>(arithmetic);
                let sum = b.add(left, right);
                b.sub(sum, arithmetic)
            },
            |t| {
                let count = t.z() & 63;
                let left = t.x().checked_shl(count).unwrap_or(0);
                let right = t.y().checked_shr(count).unwrap_or(0);
                let arithmetic = (t.y() as i32) >> count.min(31);
                left.wrapping_add(right).wrapping_sub(arithmetic as u32)
            },
        ),
        case("lop3", |b, i| b.lop3(i.x, i.y, i.z, 0xf0 ^ 0xcc ^ 0xaa), |t| t.x() ^ t.y() ^ t.z()),
        case("and_or", |b, i| b.and_or(i.x, i.y, i.z), |t| (t.x() & t.y()) | t.z()),
        case(
            "prmt",
            |b, i| b.prmt(i.x, i.y, 0x7410),
            |t| {
                let (x, y) = (t.x().to_le_bytes(), t.y().to_le_bytes());
                u32::from_le_bytes([x[0], x[1], y[0], y[3]])
            },
        ),
        case(
            "bfe",
            |b, i| {
                let unsigned = b.bfe(i.x, 5, 11);
                let signed = b.mov_bits::<S32, _>(i.y);
                let signed = b.bfe(signed, 3, 9);
                let signed = b.mov_bits::<U32, _>(signed);
                b.sub(unsigned, signed)
            },
            |t| (t.x() >> 5 & 0x7ff).wrapping_sub(((t.y() as i32) << 20 >> 23) as u32),
        ),
    ]
}

fn conversions_and_choice() -> Vec<Case> {
    vec![
        case(
            "cvt of words",
            |b, i| {
                let signed = b.mov_bits::<S32, _>(i.y);
                let (x, y) = (b.cvt::<F32, _>(i.x), b.cvt::<F32, _>(signed));
                let sum = b.add(x, y);
                b.mov_bits(sum)
            },
            |t| bits(t.x() as f32 + t.y() as i32 as f32),
        ),
        case(
            "cvt to words",
            |b, i| {
                let (nearest, cut) = (b.cvt::<S32, _>(i.f), b.cvt::<U32, _>(i.h));
                let nearest = b.mov_bits::<U32, _>(nearest);
                let both = b.mad(nearest, 100, cut);
                let low = b.cvt::<U16, U32>(i.x);
                b.st(i.own.cast::<U16>(), low);
                let low = b.ld(i.own, LoadKind::Ordinary);
                b.xor(both, low)
            },
            |t| {
                let both = (t.f().round_ties_even() as i32 as u32).wrapping_mul(100).wrapping_add(t.h() as u32);
                both ^ (t.x() & 0xffff)
            },
        ),
        case(
            "cvt of and to long words",
            |b, i| {
                let long = b.pack64(i.x, i.y);
                let rounded = b.cvt::<F32, U64>(long);
                let near = b.mul(i.h, 1e12f32);
                let cut = b.cvt::<U64, F32>(near);
                let high = b.shr::<U64>(cut, 32);
                let (low, high) = (b.cvt::<U32, U64>(cut), b.cvt::<U32, U64>(high));
                let rounded = b.mov_bits::<U32, _>(rounded);
                let both = b.xor::<U32>(low, high);
                b.xor(rounded, both)
            },
            |t| {
                let cut = (t.h() * 1e12) as u64;
                let rounded = (u64::from(t.y()) << 32 | u64::from(t.x())) as f32;
                bits(rounded) ^ cut as u32 ^ (cut >> 32) as u32
            },
        ),
        case(
            "cvt of halves",
            |b, i| {
                let half = b.cvt::<F16, _>(i.h);
                let back = b.cvt::<F32, _>(half);
                b.mov_bits(back)
            },
            |t| bits(halved(t.h())),
        ),
        case(
            "max.NaN",
            |b, i| {
                let odd = b.and(i.x, 1);
                let odd = b.setp_ne(odd, 0);
                let other = b.selp::<F32>(f32::NAN, i.g, odd);
                let greatest = b.max_nan(i.f, other);
                b.mov_bits(greatest)
            },
            |t| if t.x() % 2 == 1 { 0x7fff_ffff } else { bits(t.f().max(t.g())) },
        ),
        case(
            "cvt.f16x2 and pack",
            |b, i| {
                let both = b.cvt_f16x2(i.f, i.h);
                let (low, high) = (b.cvt::<F16, _>(i.h), b.cvt::<F16, _>(i.g));
                let packed = b.pack(low, high);
                let scaled = b.mul(packed, 3);
                b.add(both, scaled)
            },
            |t| {
                let word = |low: f32, high: f32| u32::from(half(low)) | u32::from(half(high)) << 16;
                word(t.f(), t.h()).wrapping_add(word(t.h(), t.g()).wrapping_mul(3))
            },
        ),
        case(
            "unpack",
            |b, i| {
                let [low, high] = b.unpack::<BF16>(i.x);
                b.st(i.own.cast::<BF16>(), high);
                b.st(i.own.cast::<BF16>().at(1), low);
                b.ld(i.own, LoadKind::Ordinary)
            },
            |t| t.x().rotate_left(16),
        ),
        case(
            "predicates",
            |b, i| {
                let (odd, small) = (b.and(i.x, 1), b.setp_lt(i.y, 1 << 31));
                let (odd, even) = (b.setp_ne(odd, 0), b.setp_eq(odd, 0));
                let great = b.not_pred(small);
                let (both, either) = (b.and_pred(odd, small), b.or_pred(even, great));
                let at_least = b.setp_ge(i.f, i.g);
                let (one, two, four) = (word(b, both), word(b, either), word(b, at_least));
                let sum = b.mad(two, 2, one);
                b.mad(four, 4, sum)
            },
            |t| {
                let (odd, small) = (t.x() & 1 == 1, t.y() < 1 << 31);
                u32::from(odd && small) + 2 * u32::from(!odd || !small) + 4 * u32::from(t.f() >= t.g())
            },
        ),
        case(
            "selp",
            |b, i| {
                let less = b.setp_lt(i.x, i.y);
                let number = b.selp(i.f, 2.5, less);
                b.mov_bits(number)
            },
            |t| bits(if t.x() < t.y() { t.f() } else { 2.5 }),
        ),
        case(
            "dimensions",
            |b, i| {
                let (n, constant) = (i.n, Size::Const(N));
                let mut sum = b.mov::<U32>(0);
                for n in [n, constant] {
                    let product = b.size_mul(n, 12);
                    let (eighth, seventh) = (b.size_div(product, 8), b.size_div(product, 7));
                    let upwards = b.size_div_ceil(n, 4);
                    let more = b.size_add(upwards, 5);
                    for size in [eighth, seventh, more] {
                        let scaled = b.mul(sum, 7);
                        sum = b.add(scaled, size);
                    }
                }
                sum
            },
            |_| {
                let each = [N * 12 / 8, N * 12 / 7, N.div_ceil(4) + 5];
                each.iter().chain(&each).fold(0, |sum, size| sum * 7 + size)
            },
        ),
    ]
}

fn between_lanes() -> Vec<Case> {
    vec![
        case("shfl.bfly", |b, i| b.shfl_bfly(i.x, 5), |t| t.beside(t.tid() ^ 5).x()),
        case(
            "shfl.idx",
            |b, i| {
                let number = b.shfl_idx(i.f, 9);
                b.mov_bits(number)
            },
            |t| bits(t.beside(t.tid() / 32 * 32 + 9).f()),
        ),
        case(
            "redux",
            |b, i| {
                let sum = b.redux(AtomicOp::Add, i.x);
                let greatest = b.mov_bits::<S32, _>(i.y);
                let greatest = b.redux(AtomicOp::Max, greatest);
                let any = b.redux(AtomicOp::Or, i.z);
                let greatest = b.mov_bits::<U32, _>(greatest);
                let both = b.mad(sum, 3, greatest);
                b.mad(both, 3, any)
            },
            |t| {
                let lanes = || t.all().filter(|other| other.tid() / 32 == t.tid() / 32);
                let sum = lanes().fold(0u32, |sum, other| sum.wrapping_add(other.x()));
                let greatest = lanes().map(|other| other.y() as i32).max().unwrap_or(0) as u32;
                let any = lanes().fold(0, |any, other| any | other.z());
                sum.wrapping_mul(3).wrapping_add(greatest).wrapping_mul(3).wrapping_add(any)
            },
        ),
        case("mma.m16n8k16", |b, _| product(b, 16), |t| multiplied(t, 16)),
        case("mma.m16n8k8", |b, _| product(b, 8), |t| multiplied(t, 8)),
        case(
            "vote.any",
            |b, i| {
                let seldom = b.setp_lt(i.x, 1 << 26);
                let any = b.vote_any(seldom);
                word(b, any)
            },
            |t| u32::from(t.all().any(|other| other.tid() / 32 == t.tid() / 32 && other.x() < 1 << 26)),
        ),
        case(
            "vote.ballot",
            |b, i| {
                let often = b.setp_lt(i.x, 1 << 31);
                b.vote_ballot(often)
            },
            |t| {
                let lanes = t.all().filter(|other| other.tid() / 32 == t.tid() / 32 && other.x() < 1 << 31);
                lanes.fold(0, |lanes, other| lanes | 1 << (other.tid() % 32))
            },
        ),
    ]
}
