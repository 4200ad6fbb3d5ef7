//! Placeholder.
/// Placeholder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fingerprint {
    digest: [u8; 32],
    recipe: u64,
}
/// Placeholder.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Comparison {
    /// s
    Same,
    /// d
    Different,
    /// o
    OtherRecipe,
}
impl Fingerprint {
    /// p
    pub fn from_parts(digest: [u8; 32], recipe: u64) -> Self {
        Self { digest, recipe }
    }
    /// p
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
    /// p
    pub fn recipe(&self) -> u64 {
        self.recipe
    }
    /// p
    pub fn compare(&self, stored: &Self) -> Comparison {
        if self.recipe != stored.recipe {
            Comparison::OtherRecipe
        } else if self.digest == stored.digest {
            Comparison::Same
        } else {
            Comparison::Different
        }
    }
}
