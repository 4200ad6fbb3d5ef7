#[inline(always)]
pub(crate) fn point(_name: &'static str) {}
