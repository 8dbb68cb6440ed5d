//! Macros that every level with registers of its own uses.

/// The arrays of [`Isa`] are vector registers under another name.
macro_rules! cast {
    ($value:expr, $from:ty => $to:ty) => {
        // SAFETY: both are plain data of one size, for which every bit pattern is valid.
        unsafe { std::mem::transmute::<$from, $to>($value) }
    };
}
pub(crate) use cast;

/// [`Isa::unpacker`] of a type that makes one by the width of fields.
macro_rules! unpackers {
    ($unpacker:ident) => {
        type Unpacker = $unpacker;

        #[inline(always)]
        fn unpacker(self, bits: u32) -> $unpacker {
            static ALL: [$unpacker; 8] = {
                let mut all = [$unpacker::new(1); 8];
                let mut bits = 1;
                while bits < 8 {
                    all[bits as usize] = $unpacker::new(bits);
                    bits += 1;
                }
                all
            };
            // Hidden from the compiler, which would replace the instructions by slower ones.
            *std::hint::black_box(&ALL[bits as usize])
        }
    };
}
pub(crate) use unpackers;
