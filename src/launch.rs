//! Launches by name: a struct for each kernel, or each family of them, whose fields are the kernel's parameters.
//!
//! A field has the parameter's name and type, and stands where the parameter stands. [`launch!`] makes the list of
//! arguments and the list of the buffers' uses from it; a field too many, too few, elsewhere or of another type than the
//! bake says of the kernel is an error before anything runs. For kernels of one's own `kiln_codegen::Bake` writes the
//! struct, and the [`Entry`] that names its kernel; [`LoadedModule::kernel`](crate::kernel::LoadedModule::kernel) finds
//! what is launched by it.

use crate::driver::{DeviceBuffer, DevicePtr, DeviceRepr, GpuTensor, KernelParam, MappedBuffer, MappedWord, Use};
use crate::shape::{NumberType, Param, ParamType};
use crate::{Error, Result};
pub use half::{bf16, f16};

/// A number that kernels know.
pub trait Number: DeviceRepr {
    /// Its type to them.
    const TYPE: NumberType;
}

macro_rules! numbers {
    ($($host:ty => $name:ident),*) => {$(
        impl Number for $host {
            const TYPE: NumberType = NumberType::$name;
        }
    )*};
}
numbers!(u8 => U8, i8 => S8, u16 => U16, u32 => U32, i32 => S32, u64 => U64);
numbers!(f16 => F16, bf16 => BF16, f32 => F32, f64 => F64);

mod sealed {
    /// What only kiln implements: a kernel's parameters are numbers and addresses.
    pub trait Sealed {}
}

/// A field of a launch.
pub trait Argument: sealed::Sealed {
    /// The type of its parameter.
    const TYPE: ParamType;

    /// The value.
    fn param(&self) -> KernelParam<'_>;

    /// The use of a buffer to be noted.
    fn noted(&self) -> Option<Use<'_>> {
        None
    }
}

macro_rules! values {
    ($($number:ty),*) => {$(
        impl sealed::Sealed for $number {}

        impl Argument for $number {
            const TYPE: ParamType = ParamType::Value(<$number as Number>::TYPE);

            fn param(&self) -> KernelParam<'_> {
                KernelParam::new(self)
            }
        }
    )*};
}
values!(u8, i8, u16, u32, i32, u64, f16, bf16, f32, f64);

macro_rules! addresses {
    ($($(#[$doc:meta])* $name:ident $kind:ident $uses:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $name<'a, T> {
            at: DevicePtr<T>,
            noted: Option<Use<'a>>,
        }

        impl<T> $name<'_, T> {
            /// Null, where the kernel takes that for nothing.
            pub const NULL: Self = Self { at: DevicePtr::NULL, noted: None };

            /// An address in a buffer whose use whoever launches has noted.
            pub const fn noted(at: DevicePtr<T>) -> Self {
                Self { at, noted: None }
            }
        }

        impl<T> std::fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({:?})", stringify!($name), self.at)
            }
        }

        impl<T> sealed::Sealed for $name<'_, T> {}

        impl<T: Number> Argument for $name<'_, T> {
            const TYPE: ParamType = ParamType::$kind(T::TYPE);

            fn param(&self) -> KernelParam<'_> {
                KernelParam::new(&self.at)
            }

            fn noted(&self) -> Option<Use<'_>> {
                self.noted
            }
        }

        impl<'a, T: DeviceRepr> From<&'a GpuTensor<T>> for $name<'a, T> {
            fn from(tensor: &'a GpuTensor<T>) -> Self {
                Self::from(tensor.buffer())
            }
        }

        impl<'a, T: DeviceRepr> From<Option<&'a GpuTensor<T>>> for $name<'a, T> {
            fn from(tensor: Option<&'a GpuTensor<T>>) -> Self {
                tensor.map_or(Self::NULL, Self::from)
            }
        }

        // The names of uses are the fields', which `Arguments::of` gives them.
        impl<'a, T: DeviceRepr> From<&'a DeviceBuffer<T>> for $name<'a, T> {
            fn from(buffer: &'a DeviceBuffer<T>) -> Self {
                Self { at: buffer.as_ptr(), noted: Some(buffer.$uses("")) }
            }
        }

        impl<'a, T: MappedWord> From<&'a MappedBuffer<T>> for $name<'a, T> {
            fn from(buffer: &'a MappedBuffer<T>) -> Self {
                Self { at: buffer.as_ptr(), noted: Some(buffer.$uses("")) }
            }
        }
    )*};
}

addresses! {
    /// The address of memory that a kernel reads.
    In Read reads;
    /// The address of memory that a kernel writes, and may read.
    Out Write writes;
}

/// The arguments of one launch. [`launch!`] implements it.
pub trait Launch {
    /// The same struct with borrows of any length: what is loaded for `Saxpy<'static>` is launched with any `Saxpy`.
    type At<'a>: Launch;

    /// Parameters.
    const COUNT: usize;

    /// The parameters, in order.
    fn signature() -> impl Iterator<Item = Param>;

    /// Adds the arguments, in order.
    fn add<'s>(&'s self, to: &mut Arguments<'s>);
}

/// The launch of one kernel, which its entry names. A bake implements it for what it writes.
pub trait Entry: Launch {
    /// The kernel's entry name.
    const NAME: &'static str;
}

/// Most parameters of a kernel.
const MOST: usize = 36;

/// Arguments as the driver takes them, and the uses of their buffers.
pub struct Arguments<'s> {
    params: [KernelParam<'s>; MOST],
    uses: [Option<Use<'s>>; MOST],
    count: usize,
}

impl<'s> Arguments<'s> {
    /// Those of a launch.
    pub(crate) fn of<L: Launch>(launch: &'s L) -> Arguments<'s> {
        const { assert!(L::COUNT <= MOST) };
        let mut arguments = Arguments { params: [KernelParam::new(&0u32); MOST], uses: [None; MOST], count: 0 };
        launch.add(&mut arguments);
        arguments
    }

    /// Adds the argument of the parameter `name`; [`launch!`] calls this for each field.
    pub fn push<A: Argument>(&mut self, name: &'static str, argument: &'s A) {
        let index = self.count;
        if let (Some(param), Some(noted)) = (self.params.get_mut(index), self.uses.get_mut(index)) {
            *param = argument.param();
            *noted = argument.noted().map(|noted| Use { name, ..noted });
            self.count += 1;
        }
    }

    /// What the driver takes.
    pub(crate) fn params(&self) -> &[KernelParam<'s>] {
        &self.params[..self.count]
    }

    /// The uses to be noted, each in a place of its own.
    pub(crate) fn uses(&self) -> [Option<Use<'s>>; MOST] {
        self.uses
    }
}

/// A launch with what some kernels of its family take besides, behind the rest.
impl<A: Launch, B: Launch> Launch for (A, B) {
    type At<'a> = (A::At<'a>, B::At<'a>);

    const COUNT: usize = A::COUNT + B::COUNT;

    fn signature() -> impl Iterator<Item = Param> {
        A::signature().chain(B::signature())
    }

    fn add<'s>(&'s self, to: &mut Arguments<'s>) {
        self.0.add(to);
        self.1.add(to);
    }
}

/// Declares the launch of a kernel or a family of them: a struct whose fields are the parameters, in the kernel's order.
///
/// ```
/// use kiln::launch::{In, Out, launch};
///
/// launch! {
///     /// `saxpy`: `y += a x`.
///     pub struct Saxpy<'a> {
///         x: In<'a, f32>,
///         y: Out<'a, f32>,
///         a: f32,
///         n: u32,
///     }
/// }
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! __launch {
    ($(#[$doc:meta])* $vis:vis struct $name:ident<'a $(, $number:ident: $bound:path)?> {
        $($(#[$field_doc:meta])* $field:ident: $ty:ty,)*
    }) => {
        $(#[$doc])*
        #[allow(missing_docs)] // a field is the kernel's parameter of that name
        $vis struct $name<'a $(, $number: $bound)?> {
            $($(#[$field_doc])* $vis $field: $ty,)*
        }

        impl<'a $(, $number: $bound)?> $crate::launch::Launch for $name<'a $(, $number)?> {
            type At<'b> = $name<'b $(, $number)?>;

            const COUNT: usize = [$(stringify!($field)),*].len();

            fn signature() -> impl Iterator<Item = $crate::shape::Param> {
                let param = |name, ty| $crate::shape::Param { name, ty };
                [$(param(stringify!($field), <$ty as $crate::launch::Argument>::TYPE)),*].into_iter()
            }

            fn add<'s>(&'s self, to: &mut $crate::launch::Arguments<'s>) {
                $(to.push(stringify!($field), &self.$field);)*
            }
        }
    };
}
#[doc(inline)]
pub use __launch as launch;

/// Holds a launch to the parameters of a kernel. A launch that notes a write serves a kernel that writes nothing there, as
/// one does that was baked for fewer types.
///
/// # Errors
/// [`Error::KernelParameter`] with the first that differs.
pub(crate) fn check<L: Launch>(kernel: &str, params: &[Param]) -> Result<()> {
    let mut found = params.iter().copied();
    let mut needed = L::signature();
    loop {
        let (found, needed) = (found.next(), needed.next());
        let notes_more = found.zip(needed).is_some_and(|(found, needed)| match (found.ty, needed.ty) {
            (ParamType::Read(one), ParamType::Write(other)) => one == other && found.name == needed.name,
            _ => false,
        });
        if found != needed && !notes_more {
            return Err(mismatch(kernel, found, needed));
        }
        if needed.is_none() {
            return Ok(());
        }
    }
}

#[cold]
fn mismatch(kernel: &str, found: Option<Param>, needed: Option<Param>) -> Error {
    let words = |param: Option<Param>| {
        param.map_or("no further parameter".to_owned(), |Param { name, ty }| format!("`{name}`, {ty}"))
    };
    let parameter = needed.or(found).map_or("", |param| param.name);
    Error::KernelParameter { kernel: kernel.to_owned(), parameter, found: words(found), needed: words(needed) }
}

#[cfg(test)]
mod tests {
    use super::*;

    launch! {
        struct Scale<'a> {
            x: In<'a, f32>,
            y: Out<'a, f32>,
            n: u32,
        }
    }

    const SCALE: [Param; 3] =
        [Param::read("x", NumberType::F32), Param::write("y", NumberType::F32), Param::value("n", NumberType::U32)];

    /// The refusal of a kernel with these parameters.
    fn refusal(params: &[Param]) -> String {
        match check::<Scale<'_>>("scale", params) {
            Ok(()) => panic!("{params:?} passes"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_launch_fits_the_kernel_it_was_written_for() {
        check::<Scale<'_>>("scale", &SCALE).unwrap();
        let launch = Scale { x: In::NULL, y: Out::NULL, n: 7 };
        assert_eq!(Arguments::of(&launch).params().len(), Scale::COUNT);
    }

    #[test]
    fn a_kernel_may_write_less_than_its_launch_notes() {
        let [x, _, n] = SCALE;
        check::<Scale<'_>>("scale", &[x, Param::read("y", NumberType::F32), n]).unwrap();
        assert!(refusal(&[x, Param::read("z", NumberType::F32), n]).contains("found `z`"));
        assert!(refusal(&[x, Param::read("y", NumberType::U32), n]).contains("found `y`, address of u32 to read"));
    }

    #[test]
    fn parameters_in_another_order_are_refused() {
        let [x, y, n] = SCALE;
        let error = refusal(&[y, x, n]);
        assert!(error.contains("`scale`") && error.contains("found `y`") && error.contains("needed `x`"), "{error}");
    }

    #[test]
    fn a_missing_and_an_extra_parameter_are_refused() {
        let [x, y, n] = SCALE;
        let error = refusal(&[x, y]);
        assert!(error.contains("found no further parameter, needed `n`, u32"), "{error}");
        let error = refusal(&[x, y, n, Param::value("m", NumberType::U32)]);
        assert!(error.contains("found `m`, u32, needed no further parameter"), "{error}");
    }

    #[test]
    fn another_type_of_the_same_size_is_refused() {
        let [x, y, _] = SCALE;
        let error = refusal(&[x, y, Param::value("n", NumberType::F32)]);
        assert!(error.contains("found `n`, f32, needed `n`, u32"), "{error}");
        let error = refusal(&[Param::write("x", NumberType::F32), y]);
        assert!(error.contains("found `x`, address of f32 to write, needed `x`, address of f32 to read"), "{error}");
    }
}
