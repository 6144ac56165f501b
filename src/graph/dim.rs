//! Symbolic extents: integer polynomials over named symbols, with floor division, minimum and
//! maximum as further atoms, kept in a normal form so that equal expressions compare equal.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::depth::nested;

/// Something that is not a number: a symbol or an expression that does not expand.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
enum Atom {
    Symbol(Arc<str>),
    FloorDiv(#[serde(deserialize_with = "nested")] Dim, #[serde(deserialize_with = "nested")] Dim),
    Max(#[serde(deserialize_with = "nested")] Dim, #[serde(deserialize_with = "nested")] Dim),
    Min(#[serde(deserialize_with = "nested")] Dim, #[serde(deserialize_with = "nested")] Dim),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
struct Term {
    factors: Vec<Atom>,
    coefficient: i64,
}

/// A symbolic whole number, such as `N`, `4` or `(W + 1)/2`.
///
/// Coefficients saturate at the ends of `i64`. A clone shares what does not fit into a number: the
/// extents of a deep network are nested deeply, and every value has some.
///
/// ```
/// use brigade::graph::Dim;
/// let n = Dim::symbol("N");
/// let twice = n.clone() * Dim::fixed(6) / Dim::fixed(3);
/// assert_eq!(twice, n.clone() + n.clone());
/// assert_eq!(twice.to_string(), "2*N");
/// assert_eq!(twice.evaluate(&|s| (s == "N").then_some(5)), Some(10));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "Vec<Term>", into = "Vec<Term>")]
pub struct Dim(Form);

/// The terms of a [`Dim`].
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Form {
    /// A single one without factors, or none.
    Number(i64),
    /// All others, sorted, each with another product of factors and none of them zero.
    Sum(Arc<[Term]>),
}

impl Default for Dim {
    fn default() -> Self {
        Self::fixed(0)
    }
}

impl From<Vec<Term>> for Dim {
    fn from(terms: Vec<Term>) -> Self {
        let sorted = |mut t: Term| {
            t.factors.sort();
            (t.factors, t.coefficient)
        };
        Self::from_terms(terms.into_iter().map(sorted))
    }
}

impl From<Dim> for Vec<Term> {
    fn from(dim: Dim) -> Self {
        let owned = |(factors, coefficient): (&[Atom], i64)| Term {
            factors: factors.to_vec(),
            coefficient,
        };
        dim.terms().map(owned).collect()
    }
}

impl Dim {
    /// A known number.
    pub const fn fixed(value: i64) -> Self {
        Self(Form::Number(value))
    }

    /// A known extent.
    pub fn of(value: usize) -> Self {
        Self::fixed(i64::try_from(value).unwrap_or(i64::MAX))
    }

    /// A symbol.
    pub fn symbol(name: impl Into<String>) -> Self {
        Self::atom(Atom::Symbol(name.into().into()))
    }

    fn from_terms(terms: impl IntoIterator<Item = (Vec<Atom>, i64)>) -> Self {
        let mut sum: BTreeMap<Vec<Atom>, i64> = BTreeMap::new();
        for (factors, coefficient) in terms {
            let c = sum.entry(factors).or_insert(0);
            *c = c.saturating_add(coefficient);
        }
        sum.retain(|_, c| *c != 0);
        match sum.first_key_value() {
            None => Self::fixed(0),
            Some((factors, c)) if sum.len() == 1 && factors.is_empty() => Self::fixed(*c),
            _ => {
                let terms =
                    sum.into_iter().map(|(factors, coefficient)| Term { factors, coefficient });
                Self(Form::Sum(terms.collect()))
            }
        }
    }

    fn atom(atom: Atom) -> Self {
        Self(Form::Sum(Arc::new([Term { factors: vec![atom], coefficient: 1 }])))
    }

    /// The factors and the coefficient of each term.
    fn terms(&self) -> impl Iterator<Item = (&[Atom], i64)> {
        let (number, terms) = match &self.0 {
            Form::Number(0) => (None, Default::default()),
            Form::Number(n) => (Some((Default::default(), *n)), Default::default()),
            Form::Sum(terms) => (None, &**terms),
        };
        number.into_iter().chain(terms.iter().map(|t| (t.factors.as_slice(), t.coefficient)))
    }

    /// The factors and the coefficient, if there is a single term.
    fn single(&self) -> Option<(&[Atom], i64)> {
        let mut terms = self.terms();
        terms.next().filter(|_| terms.next().is_none())
    }

    /// The number, if it is known.
    pub fn as_fixed(&self) -> Option<i64> {
        match self.0 {
            Form::Number(n) => Some(n),
            Form::Sum(_) => None,
        }
    }

    /// The extent, if it is known and not negative.
    pub fn as_extent(&self) -> Option<usize> {
        self.as_fixed().and_then(|v| usize::try_from(v).ok())
    }

    /// The symbol's name, if it is nothing but one.
    pub fn as_symbol(&self) -> Option<&str> {
        match self.single() {
            Some(([Atom::Symbol(name)], 1)) => Some(name),
            _ => None,
        }
    }

    /// Calls `visit` with each symbol in it.
    pub fn visit_symbols(&self, visit: &mut dyn FnMut(&str)) {
        for atom in self.terms().flat_map(|(factors, _)| factors) {
            match atom {
                Atom::Symbol(name) => visit(name),
                Atom::FloorDiv(a, b) | Atom::Max(a, b) | Atom::Min(a, b) => {
                    a.visit_symbols(visit);
                    b.visit_symbols(visit);
                }
            }
        }
    }

    /// Whether the symbol occurs in it.
    pub fn contains(&self, symbol: &str) -> bool {
        let mut found = false;
        self.visit_symbols(&mut |s| found |= s == symbol);
        found
    }

    /// The number, given the value of each symbol; `None` if a symbol has none, on overflow or on
    /// division by zero.
    pub fn evaluate(&self, value: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
        let mut sum = 0i64;
        for (factors, coefficient) in self.terms() {
            let mut product = coefficient;
            for atom in factors {
                let v = match atom {
                    Atom::Symbol(name) => value(name)?,
                    Atom::FloorDiv(a, b) => {
                        let (a, b) = (a.evaluate(value)?, b.evaluate(value)?);
                        if b == 0 {
                            return None;
                        }
                        a.checked_div_euclid(b)?
                    }
                    Atom::Max(a, b) => a.evaluate(value)?.max(b.evaluate(value)?),
                    Atom::Min(a, b) => a.evaluate(value)?.min(b.evaluate(value)?),
                };
                product = product.checked_mul(v)?;
            }
            sum = sum.checked_add(product)?;
        }
        Some(sum)
    }

    /// The expression with some symbols replaced.
    #[must_use]
    pub fn substitute(&self, replace: &dyn Fn(&str) -> Option<Self>) -> Self {
        let mut sum = Self::default();
        for (factors, coefficient) in self.terms() {
            let mut product = Self::fixed(coefficient);
            for atom in factors {
                let v = match atom {
                    Atom::Symbol(name) => replace(name).unwrap_or_else(|| Self::atom(atom.clone())),
                    Atom::FloorDiv(a, b) => a.substitute(replace).floor_div(&b.substitute(replace)),
                    Atom::Max(a, b) => a.substitute(replace).larger(&b.substitute(replace)),
                    Atom::Min(a, b) => a.substitute(replace).smaller(&b.substitute(replace)),
                };
                product = product * v;
            }
            sum = sum + product;
        }
        sum
    }

    /// The quotient, if `divisor` is a single non-zero term that divides every term.
    pub fn exact_div(&self, divisor: &Self) -> Option<Self> {
        let (divisor, by) = divisor.single()?;
        let mut out = Vec::new();
        for (factors, coefficient) in self.terms() {
            if coefficient.checked_rem(by) != Some(0) {
                return None;
            }
            let mut factors = factors.to_vec();
            for f in divisor {
                let at = factors.iter().position(|x| x == f)?;
                factors.remove(at);
            }
            out.push((factors, coefficient / by));
        }
        Some(Self::from_terms(out))
    }

    /// Division rounded towards negative infinity (for a positive divisor).
    #[must_use]
    pub fn floor_div(&self, divisor: &Self) -> Self {
        if let Some(exact) = self.exact_div(divisor) {
            return exact;
        }
        if let Some(k) = divisor.as_fixed().filter(|k| *k > 0) {
            // floor((k*q + r) / k) = q + floor(r / k)
            let (mut whole, mut rest) = (Vec::new(), Vec::new());
            for (factors, c) in self.terms() {
                if factors.is_empty() {
                    whole.push((Vec::new(), c.div_euclid(k)));
                    rest.push((Vec::new(), c.rem_euclid(k)));
                } else if c % k == 0 {
                    whole.push((factors.to_vec(), c / k));
                } else {
                    rest.push((factors.to_vec(), c));
                }
            }
            let (whole, rest) = (Self::from_terms(whole), Self::from_terms(rest));
            return match rest.as_fixed() {
                Some(r) => whole + Self::fixed(r.div_euclid(k)),
                None => whole + Self::atom(Atom::FloorDiv(rest, divisor.clone())),
            };
        }
        Self::atom(Atom::FloorDiv(self.clone(), divisor.clone()))
    }

    /// Division rounded up, for a known positive divisor.
    #[must_use]
    pub fn ceil_div(&self, divisor: i64) -> Self {
        (self.clone() + Self::fixed(divisor.max(1) - 1)).floor_div(&Self::fixed(divisor.max(1)))
    }

    /// The larger of two.
    #[must_use]
    pub fn larger(&self, other: &Self) -> Self {
        match (self.clone() - other.clone()).as_fixed() {
            Some(d) if d >= 0 => self.clone(),
            Some(_) => other.clone(),
            None => Self::atom(Atom::Max(self.clone(), other.clone())),
        }
    }

    /// The smaller of two.
    #[must_use]
    pub fn smaller(&self, other: &Self) -> Self {
        match (self.clone() - other.clone()).as_fixed() {
            Some(d) if d <= 0 => self.clone(),
            Some(_) => other.clone(),
            None => Self::atom(Atom::Min(self.clone(), other.clone())),
        }
    }

    /// Whether it cannot be negative while no symbol in it is: true only where that is certain.
    pub fn is_non_negative(&self) -> bool {
        let certain = |atom: &Atom| match atom {
            Atom::Symbol(_) => true,
            Atom::FloorDiv(a, b) | Atom::Min(a, b) => a.is_non_negative() && b.is_non_negative(),
            Atom::Max(a, b) => a.is_non_negative() || b.is_non_negative(),
        };
        self.terms().all(|(factors, c)| c >= 0 && factors.iter().all(certain))
    }

    /// It, or 0 where it might be negative.
    #[must_use]
    pub fn or_zero(self) -> Self {
        if self.is_non_negative() { self } else { self.larger(&Self::fixed(0)) }
    }

    /// The product of several extents.
    pub fn product<'a>(dims: impl IntoIterator<Item = &'a Self>) -> Self {
        dims.into_iter().fold(Self::fixed(1), |a, d| a * d.clone())
    }
}

impl std::ops::Add for Dim {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        if let (Form::Number(a), Form::Number(b)) = (&self.0, &other.0) {
            return Self::fixed(a.saturating_add(*b));
        }
        Self::from_terms(self.terms().chain(other.terms()).map(|(f, c)| (f.to_vec(), c)))
    }
}

impl std::ops::Sub for Dim {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + Self::fixed(-1) * other
    }
}

impl std::ops::Mul for Dim {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        if let (Form::Number(a), Form::Number(b)) = (&self.0, &other.0) {
            return Self::fixed(a.saturating_mul(*b));
        }
        let mut terms = Vec::new();
        for (f, a) in self.terms() {
            for (g, b) in other.terms() {
                let mut factors: Vec<Atom> = f.iter().chain(g).cloned().collect();
                factors.sort();
                terms.push((factors, a.saturating_mul(b)));
            }
        }
        Self::from_terms(terms)
    }
}

impl std::ops::Div for Dim {
    type Output = Self;
    /// [`Dim::floor_div`].
    fn div(self, other: Self) -> Self {
        self.floor_div(&other)
    }
}

impl From<usize> for Dim {
    fn from(value: usize) -> Self {
        Self::of(value)
    }
}

impl fmt::Display for Atom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symbol(name) => f.write_str(name),
            Self::FloorDiv(a, b) => write!(f, "floor(({a})/({b}))"),
            Self::Max(a, b) => write!(f, "max({a}, {b})"),
            Self::Min(a, b) => write!(f, "min({a}, {b})"),
        }
    }
}

impl fmt::Display for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Form::Number(n) = self.0 {
            return write!(f, "{n}");
        }
        // Constants sort first; they read better last.
        let ordered = self.terms().filter(|(factors, _)| !factors.is_empty());
        let ordered = ordered.chain(self.terms().filter(|(factors, _)| factors.is_empty()));
        for (i, (factors, c)) in ordered.enumerate() {
            match (i, c < 0) {
                (0, true) => f.write_str("-")?,
                (0, false) => {}
                (_, true) => f.write_str(" - ")?,
                (_, false) => f.write_str(" + ")?,
            }
            let names: Vec<String> = factors.iter().map(Atom::to_string).collect();
            match (c.unsigned_abs(), names.is_empty()) {
                (n, true) => write!(f, "{n}")?,
                (1, false) => f.write_str(&names.join("*"))?,
                (n, false) => write!(f, "{n}*{}", names.join("*"))?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Dim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(name: &str) -> Dim {
        Dim::symbol(name)
    }

    #[test]
    fn normal_forms_are_equal() {
        let (a, b) = (s("a"), s("b"));
        assert_eq!(
            (a.clone() + b.clone()) * (a.clone() - b.clone()),
            a.clone() * a.clone() - b.clone() * b.clone()
        );
        assert_eq!((a.clone() - a.clone()).as_fixed(), Some(0));
        assert_eq!(
            (a.clone() * b.clone() * Dim::fixed(12)).exact_div(&(b * Dim::fixed(4))),
            Some(a * Dim::fixed(3))
        );
    }

    #[test]
    fn division_pulls_out_whole_parts() {
        let w = s("W");
        // A stride-2 convolution over 2*W: floor((2W - 1)/2) + 1 = W.
        let out = (w.clone() * Dim::fixed(2) - Dim::fixed(1)) / Dim::fixed(2) + Dim::fixed(1);
        assert_eq!(out, w);
        let odd = (w.clone() - Dim::fixed(1)) / Dim::fixed(2) + Dim::fixed(1);
        assert_eq!(odd.evaluate(&|_| Some(7)), Some(4));
        assert_eq!(odd.evaluate(&|_| Some(8)), Some(4));
        assert_eq!(odd.substitute(&|_| Some(Dim::fixed(9))), Dim::fixed(5));
    }

    #[test]
    fn a_clone_shares_and_the_wire_form_is_the_list_of_terms() {
        let w = (s("W") - Dim::fixed(1)) / Dim::fixed(2) + Dim::fixed(1);
        let (Form::Sum(a), Form::Sum(b)) = (&w.0, &w.clone().0) else { panic!("{w} is a sum") };
        assert!(Arc::ptr_eq(a, b));
        for (dim, json) in [
            (Dim::fixed(0), "[]".to_owned()),
            (Dim::fixed(3), r#"[{"factors":[],"coefficient":3}]"#.to_owned()),
            (s("N"), r#"[{"factors":[{"Symbol":"N"}],"coefficient":1}]"#.to_owned()),
            (w.clone(), serde_json::to_string(&w).unwrap()),
        ] {
            assert_eq!(serde_json::to_string(&dim).unwrap(), json);
            assert_eq!(serde_json::from_str::<Dim>(&json).unwrap(), dim);
            let bytes = bincode::serialize(&dim).unwrap();
            assert_eq!(bincode::deserialize::<Dim>(&bytes).unwrap(), dim);
        }
        // What is not in normal form on the wire is brought into it.
        let zero = r#"[{"factors":[],"coefficient":0}]"#;
        assert_eq!(serde_json::from_str::<Dim>(zero).unwrap(), Dim::fixed(0));
    }

    #[test]
    fn extremes_do_not_panic() {
        let big = Dim::fixed(i64::MAX);
        assert!((big.clone() * big.clone() + big).as_fixed().is_some());
        assert_eq!(Dim::fixed(1).floor_div(&Dim::fixed(0)).evaluate(&|_| None), None);
        assert_eq!(Dim::fixed(i64::MIN).exact_div(&Dim::fixed(-1)), None);
    }
}
