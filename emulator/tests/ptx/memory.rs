//! Device memory, used without a driver.

use kiln_emulator::{Memory, MemoryError};

#[test]
fn addresses_are_aligned_distinct_and_checked() {
    let m = Memory::new(1 << 20);
    let (a, b) = (m.alloc(10).unwrap(), m.alloc(1000).unwrap());
    assert_eq!((a % 512, b % 512), (0, 0));
    assert_eq!(m.used(), 512 + 1024);
    m.write(a, &[1, 2, 3]).unwrap();
    let mut out = [0; 3];
    m.read(a, &mut out).unwrap();
    assert_eq!(out, [1, 2, 3]);
    assert_eq!(m.write(a, &[0; 11]), Err(MemoryError::OutOfBounds { address: a, bytes: 11 }));
    assert!(m.write(a + 9, &[0; 2]).is_err() && m.read(a + 10, &mut out).is_err());
    assert!(matches!(m.alloc(1 << 21), Err(MemoryError::OutOfMemory { .. })));
    assert!(matches!(m.alloc(u64::MAX), Err(MemoryError::OutOfMemory { .. })));
    m.free(a).unwrap();
    assert_eq!(m.free(a), Err(MemoryError::NotAllocated { address: a }));
    assert_eq!(m.live_allocations(), [(b, 1000)]);
    assert_eq!(m.used(), 1024);
    assert_ne!(m.alloc(10).unwrap(), a, "a freed address is not used again");
}

#[test]
fn copies_carry_what_was_never_written() {
    let m = Memory::new(1 << 20);
    let (a, b) = (m.alloc(64).unwrap(), m.alloc(64).unwrap());
    m.write(a + 3, &[7; 30]).unwrap();
    m.copy(b, a, 64).unwrap();
    assert!(m.initialised(b + 3, 30).unwrap());
    assert!(!m.initialised(b + 2, 2).unwrap());
    assert!(!m.initialised(b + 33, 1).unwrap());
    // Within one allocation, and over each other.
    m.copy(a + 4, a, 40).unwrap();
    assert!(m.initialised(a + 3, 34).unwrap());
    assert!(!m.initialised(a + 37, 1).unwrap());
}

#[test]
fn fills_repeat_their_pattern_and_stay_inside() {
    let m = Memory::new(1 << 20);
    let a = m.alloc(10_000).unwrap();
    m.fill(a + 1, &[1, 2, 3, 4], 2100).unwrap();
    let mut out = vec![0; 8402];
    m.read(a, &mut out).unwrap();
    assert!(out[1..8401].chunks(4).all(|c| c == [1, 2, 3, 4]));
    assert!(!m.initialised(a, 1).unwrap() && m.initialised(a + 1, 8400).unwrap());
    assert!(!m.initialised(a + 8401, 1).unwrap());
    assert!(m.fill(a, &[0], 10_001).is_err() && m.fill(a, &[0; 4], u64::MAX).is_err());
    m.fill(a, &[9], 10_000).unwrap();
    assert!(m.initialised(a, 10_000).unwrap());
}

#[test]
fn copies_over_each_other_move_the_bytes() {
    let m = Memory::new(1 << 20);
    let a = m.alloc(40_000).unwrap();
    let bytes: Vec<u8> = (0..30_000u32).map(|i| (i % 251) as u8).collect();
    for (from, to) in [(5_000, 5_003), (5_003, 5_000), (16, 8), (8, 16), (0, 9_999), (9_999, 0), (7, 7)] {
        m.fill(a, &[0xee], 40_000).unwrap();
        m.write(a + from, &bytes).unwrap();
        m.copy(a + to, a + from, 30_000).unwrap();
        let mut out = vec![0; 40_000];
        m.read(a, &mut out).unwrap();
        assert!(out[to as usize..][..30_000] == bytes, "{from} to {to}");
        let end = (to.max(from) + 30_000) as usize;
        assert!(out[end..].iter().all(|byte| *byte == 0xee), "{from} to {to}");
    }
}

/// Few where every access is looked at.
const ROUNDS: u32 = if cfg!(miri) { 16 } else { 100_000 };

#[test]
fn writers_of_neighbouring_bytes_do_not_undo_each_other() {
    let m = Memory::new(1 << 20);
    let a = m.alloc(1 << 10).unwrap();
    std::thread::scope(|scope| {
        // Up to a boundary within a word, and on from there; by many lengths, so that they meet.
        for ahead in [true, false] {
            let m = &m;
            scope.spawn(move || {
                for round in 0..3 * ROUNDS {
                    let len = 3 + u64::from(round * if ahead { 7 } else { 5 }) % 200;
                    let (at, edge) = if ahead { (a + 507 - len, len - 1) } else { (a + 507, 0) };
                    m.write(at, &vec![round as u8; len as usize]).unwrap();
                    let mut seen = [0];
                    m.read(at + edge, &mut seen).unwrap();
                    assert_eq!(seen, [round as u8]);
                }
            });
        }
    });
}

#[test]
fn copies_beside_each_other_race_by_whole_words() {
    let m = Memory::new(1 << 20);
    let (a, b) = (m.alloc(4096).unwrap(), m.alloc(4096).unwrap());
    m.fill(a, &[0], 4096).unwrap();
    std::thread::scope(|scope| {
        let m = &m;
        let writers = [
            scope.spawn(move || (0..ROUNDS / 8).for_each(|i| m.write(a, &[i as u8; 4096]).unwrap())),
            scope.spawn(move || (0..ROUNDS / 8).for_each(|i| m.fill(a, &[!i as u8], 4096).unwrap())),
            scope.spawn(move || (0..ROUNDS / 8).for_each(|_| m.copy(b, a, 4096).unwrap())),
        ];
        let mut out = [0; 4096];
        while !writers.iter().all(|writer| writer.is_finished()) {
            m.read(a, &mut out).unwrap();
            assert!(out.chunks(8).all(|word| word.iter().all(|byte| *byte == word[0])), "half of a word");
        }
    });
}

#[test]
fn mapped_memory_of_the_host_is_copied_wherever_it_begins() {
    let m = Memory::new(1 << 20);
    for (start, len) in [(3, 13), (8, 16), (1, 4), (6, 3), (5, 40)] {
        // Ends where the mapping does, which a word need not.
        let mut host = vec![0xffu8; start + len as usize].into_boxed_slice();
        // SAFETY: the bytes outlive the mapping, and nothing else accesses them meanwhile.
        let address = unsafe { m.map_host(host.as_mut_ptr().add(start), len) };
        let bytes: Vec<u8> = (1..=len as u8).collect();
        m.write(address, &bytes).unwrap();
        let mut out = vec![0; len as usize];
        m.read(address, &mut out).unwrap();
        assert_eq!(out, bytes);
        m.free(address).unwrap();
        assert_eq!(host[start..], bytes);
        assert!(host[..start].iter().all(|byte| *byte == 0xff), "{start}, {len}: {host:?}");
    }
}
