#[derive(Debug, Clone, PartialEq)]
pub enum Rope {
    Default { theta: f64 },
}
impl Rope {
    pub fn inverse_frequencies(&self, _d: usize) -> Vec<f64> {
        vec![]
    }
    pub fn attention_scaling(&self) -> f64 {
        1.0
    }
}
