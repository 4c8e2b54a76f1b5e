//! Codes of findings: one definition for each command that reports findings.

/// Defines an enum of codes with their catalogue: name, meaning, and what to do.
///
/// A name never changes its meaning, and no other finding gets the name of one that doesn't exist
/// any more. `docs/reference/findings.md` and `weft help CODE` show all three texts.
///
/// ```
/// types::finding_codes! {
///     /// Codes of an example.
///     pub enum Code {
///         DiskFull = "disk-full", "The disk is full.", "Delete files.",
///     }
/// }
/// assert_eq!(Code::DiskFull.name(), "disk-full");
/// assert_eq!(Code::ALL, [Code::DiskFull]);
/// assert_eq!(Code::DiskFull.remedy(), "Delete files.");
/// ```
#[macro_export]
macro_rules! finding_codes {
    (
        $(#[$attribute:meta])*
        pub enum $codes:ident { $($code:ident = $name:literal, $meaning:literal, $remedy:literal,)+ }
    ) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $codes { $(#[doc = $meaning] $code,)+ }

        impl $codes {
            /// All codes, in the order of the reference.
            pub const ALL: &[$codes] = &[$($codes::$code),+];

            /// The stable name, as users and programs see it.
            pub const fn name(self) -> &'static str {
                match self { $($codes::$code => $name),+ }
            }

            /// What is the case.
            pub const fn meaning(self) -> &'static str {
                match self { $($codes::$code => $meaning),+ }
            }

            /// What to do.
            pub const fn remedy(self) -> &'static str {
                match self { $($codes::$code => $remedy),+ }
            }
        }
    };
}
