//! The systematic Reed-Solomon erasure code of RFC 5510 section 8, compatible with NRL's NORM.
//!
//! The source symbols of a block are a polynomial's values at the points 0, 1, α, α², …; parity symbols
//! are its values at the following points. Any `k` symbols determine the polynomial. A block of fewer than
//! `k` symbols is one whose last symbols are zero and are not sent (a shortened code).

use crate::gf;

/// The most symbols of a block, parity included.
pub const MAX_SYMBOLS: usize = 255;

/// A code of `k` source symbols and some parity symbols.
#[derive(Clone, Debug)]
pub struct Code {
    k: usize,
    /// A row of `k` coefficients per parity symbol.
    rows: Vec<u8>,
}

fn point(index: usize) -> u8 {
    if index == 0 { 0 } else { gf::power(index - 1) }
}

impl Code {
    /// A code of `k` source and `parity` parity symbols; none if `k` is 0 or together they are more
    /// than [`MAX_SYMBOLS`].
    #[must_use]
    pub fn new(k: usize, parity: usize) -> Option<Code> {
        if k == 0 || k + parity > MAX_SYMBOLS {
            return None;
        }
        // Lagrange: parity = Σ dⱼ · wⱼ · Π(x - xₘ) / (x - xⱼ), with wⱼ = 1 / Π(xⱼ - xₘ), m ≠ j.
        let weight = |j: usize| {
            let others = (0..k).filter(|&m| m != j);
            gf::inverse(others.fold(1, |all, m| gf::mul(all, point(j) ^ point(m))))
        };
        let weights: Vec<u8> = (0..k).map(weight).collect();
        let mut rows = Vec::with_capacity(parity * k);
        for x in (k..k + parity).map(point) {
            let all = (0..k).fold(1, |all, m| gf::mul(all, x ^ point(m)));
            let row = |j: usize| gf::mul(gf::mul(all, weights[j]), gf::inverse(x ^ point(j)));
            rows.extend((0..k).map(row));
        }
        Some(Code { k, rows })
    }

    /// Source symbols of a full block.
    #[must_use]
    pub fn k(&self) -> usize {
        self.k
    }

    /// The number of parity symbols.
    #[must_use]
    pub fn parity_symbols(&self) -> usize {
        self.rows.len() / self.k
    }

    fn row(&self, parity: usize) -> &[u8] {
        &self.rows[parity * self.k..][..self.k]
    }

    /// Computes a parity symbol of a block, whose source symbols lie one after the other in `block`,
    /// each as long as `symbol`.
    ///
    /// # Panics
    /// There is no such parity symbol.
    pub fn parity(&self, parity: usize, block: &[u8], symbol: &mut [u8]) {
        symbol.fill(0);
        let row = self.row(parity);
        for (source, &factor) in block.chunks(symbol.len()).zip(row) {
            gf::add_product(symbol, source, factor);
        }
    }

    /// Fills in the `missing` source symbols of a block, which must be zero in it. Each parity symbol has its number
    /// and is `symbol_bytes` long; there must be one per missing symbol.
    ///
    /// Returns whether that was possible.
    #[must_use]
    pub fn recover(
        &self,
        block: &mut [u8],
        symbol_bytes: usize,
        missing: &[usize],
        parity: Vec<(usize, Vec<u8>)>,
    ) -> bool {
        let count = missing.len();
        let fits = |&(number, ref symbol): &(usize, Vec<u8>)| {
            number < self.parity_symbols() && symbol.len() == symbol_bytes
        };
        let symbols = block.len() / symbol_bytes.max(1);
        if parity.len() < count || !parity.iter().all(fits) || symbols > self.k {
            return false;
        }
        if missing.iter().any(|&symbol| symbol >= symbols) {
            return false;
        }
        let mut parity = parity;
        parity.truncate(count);
        // Subtracts the known source symbols from each parity symbol, which leaves a combination of the missing ones.
        // The missing symbols are zero in the block and so add nothing.
        for (number, rest) in &mut parity {
            for (source, &factor) in block.chunks(symbol_bytes).zip(self.row(*number)) {
                gf::add_product(rest, source, factor);
            }
        }
        let mut matrix: Vec<Vec<u8>> = parity
            .iter()
            .map(|&(number, _)| missing.iter().map(|&symbol| self.row(number)[symbol]).collect())
            .collect();
        let Some(inverse) = invert(&mut matrix) else { return false };
        for (&symbol, row) in missing.iter().zip(&inverse) {
            let to = &mut block[symbol * symbol_bytes..][..symbol_bytes];
            for ((_, rest), &factor) in parity.iter().zip(row) {
                gf::add_product(to, rest, factor);
            }
        }
        true
    }
}

/// The inverse of a square matrix by Gauss–Jordan elimination; `None` if it is singular.
fn invert(matrix: &mut [Vec<u8>]) -> Option<Vec<Vec<u8>>> {
    let n = matrix.len();
    let unit = |i: usize| (0..n).map(|j| u8::from(i == j)).collect();
    let mut inverse: Vec<Vec<u8>> = (0..n).map(unit).collect();
    for column in 0..n {
        let pivot = (column..n).find(|&row| matrix[row][column] != 0)?;
        matrix.swap(column, pivot);
        inverse.swap(column, pivot);
        let scale = gf::inverse(matrix[column][column]);
        for row in [&mut matrix[column], &mut inverse[column]] {
            row.iter_mut().for_each(|value| *value = gf::mul(*value, scale));
        }
        let (row, unit) = (matrix[column].clone(), inverse[column].clone());
        for other in (0..n).filter(|&other| other != column) {
            let factor = matrix[other][column];
            gf::add_product(&mut matrix[other], &row, factor);
            gf::add_product(&mut inverse[other], &unit, factor);
        }
    }
    Some(inverse)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// The generator of RFC 5510 section 8.2: the Vandermonde matrix times the inverse of its top.
    fn generator(k: usize, n: usize) -> Vec<Vec<u8>> {
        let value = |x: u8, j: usize| (0..j).fold(1, |all, _| gf::mul(all, x));
        let row = |i: usize| (0..k).map(|j| value(point(i), j)).collect::<Vec<u8>>();
        let top = invert(&mut (0..k).map(row).collect::<Vec<_>>()).unwrap();
        let times = |a: &[u8], j: usize| (0..k).fold(0, |sum, m| sum ^ gf::mul(a[m], top[m][j]));
        (0..n).map(|i| (0..k).map(|j| times(&row(i), j)).collect()).collect()
    }

    #[test]
    fn coefficients_are_those_of_the_systematic_vandermonde_matrix() {
        for (k, parity) in [(1, 3), (4, 2), (20, 200), (64, 32)] {
            let code = Code::new(k, parity).unwrap();
            let generator = generator(k, k + parity);
            for i in 0..parity {
                assert_eq!(code.row(i), generator[k + i], "({k}, {parity}), row {i}");
            }
        }
    }

    #[test]
    fn any_k_symbols_recover_a_block_also_a_short_one() {
        const LEN: usize = 5;
        let mut random = fastrand::Rng::with_seed(7);
        let code = Code::new(20, 40).unwrap();
        for round in 0..300 {
            let symbols = random.usize(1..=20);
            let block: Vec<u8> = (0..symbols * LEN).map(|_| random.u8(..)).collect();
            let lost = random.usize(0..=symbols);
            let missing = random.choose_multiple(0..symbols, lost);
            let mut parity = Vec::new();
            for number in random.choose_multiple(0..40, lost) {
                let mut symbol = vec![0; LEN];
                code.parity(number, &block, &mut symbol);
                parity.push((number, symbol));
            }
            let mut broken = block.clone();
            for &symbol in &missing {
                broken[symbol * LEN..][..LEN].fill(0);
            }
            assert!(code.recover(&mut broken, LEN, &missing, parity), "round {round}");
            assert_eq!(broken, block, "round {round}");
        }
    }

    #[test]
    fn too_little_parity_or_parity_of_another_code_recovers_nothing() {
        let code = Code::new(4, 2).unwrap();
        let mut block = vec![0; 8];
        assert!(!code.recover(&mut block, 2, &[0], vec![]));
        assert!(!code.recover(&mut block, 2, &[0], vec![(2, vec![0; 2])]));
        assert!(!code.recover(&mut block, 2, &[0], vec![(0, vec![0; 3])]));
        assert!(!code.recover(&mut block, 2, &[4], vec![(0, vec![0; 2])]));
        assert!(Code::new(0, 4).is_none());
        assert!(Code::new(200, 56).is_none());
    }
}
