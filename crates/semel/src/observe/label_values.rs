//! Enums that are the values of a label.

/// Declares such an enum: each variant with its value in the exported text.
macro_rules! label_values {
    (
        $(#[$about:meta])*
        $name:ident { $($(#[$what:meta])* $variant:ident = $value:literal,)+ }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub(crate) enum $name {
            $($(#[$what])* $variant,)+
        }

        impl $name {
            const ALL: [Self; [$($value),+].len()] = [$(Self::$variant),+];

            pub(crate) fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $value,)+
                }
            }
        }
    };
}

pub(super) use label_values;
