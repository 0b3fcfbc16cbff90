//! Which type may stand for which, and what the letters of signatures turn out to be.

use std::collections::HashMap;
use std::sync::Arc;

use crate::typing::Type;

#[derive(Debug, Default)]
pub(super) struct Inference {
    known: HashMap<u32, Type>,
    next: u32,
    /// The letters that the question now being answered has bound, with their types before, so that they can be taken
    /// back.
    changed: Vec<(u32, Option<Type>)>,
}

impl Inference {
    pub(super) fn fresh(&mut self) -> Type {
        self.next += 1;
        Type::Variable(self.next)
    }

    /// The type that a variable stands for, as far as its outermost part is known.
    pub(super) fn known(&self, kind: &Type) -> Type {
        let mut kind = kind;
        while let Type::Variable(number) = kind {
            match self.known.get(number) {
                Some(found) => kind = found,
                None => break,
            }
        }
        kind.clone()
    }

    /// The whole type, with `dyn` for what nothing decided.
    pub(super) fn finished(&self, kind: &Type) -> Type {
        self.finished_at(kind, 0)
    }

    fn finished_at(&self, kind: &Type, depth: usize) -> Type {
        // Types nest as deeply as expressions do.
        if depth > 300 {
            return Type::Dyn;
        }
        let part = |t: &Type| self.finished_at(t, depth + 1);
        match self.known(kind) {
            Type::Variable(_) => Type::Dyn,
            Type::List(item) => Type::list(part(&item)),
            Type::Map(pair) => Type::map(part(&pair.0), part(&pair.1)),
            Type::Optional(item) => Type::optional(part(&item)),
            Type::Type(of) => Type::Type(Arc::new(part(&of))),
            other => other,
        }
    }

    /// A signature's type with its letters replaced by variables of one call.
    pub(super) fn instantiate(&mut self, kind: &Type, letters: &mut HashMap<char, Type>) -> Type {
        match kind {
            Type::Parameter(letter) => letters.entry(*letter).or_insert_with(|| self.fresh()).clone(),
            Type::List(item) => Type::list(self.instantiate(item, letters)),
            Type::Map(pair) => Type::map(self.instantiate(&pair.0, letters), self.instantiate(&pair.1, letters)),
            Type::Optional(item) => Type::optional(self.instantiate(item, letters)),
            Type::Type(of) => Type::Type(Arc::new(self.instantiate(of, letters))),
            other => other.clone(),
        }
    }

    /// Whether all of these may be given for those, together. The letters that it binds on the way stay bound only if
    /// they may.
    pub(super) fn all_assignable(&mut self, wanted: &[Type], given: &[Type]) -> bool {
        let fits = wanted.len() == given.len() && wanted.iter().zip(given).all(|(w, g)| self.unify(w, g, 0));
        for (number, before) in std::mem::take(&mut self.changed).into_iter().rev() {
            match before {
                _ if fits => {}
                Some(kind) => drop(self.known.insert(number, kind)),
                None => drop(self.known.remove(&number)),
            }
        }
        fits
    }

    fn set(&mut self, number: u32, kind: Type) {
        let before = self.known.insert(number, kind);
        self.changed.push((number, before));
    }

    pub(super) fn assignable(&mut self, wanted: &Type, given: &Type) -> bool {
        self.all_assignable(std::slice::from_ref(wanted), std::slice::from_ref(given))
    }

    fn unify(&mut self, wanted: &Type, given: &Type, depth: usize) -> bool {
        if depth > 300 {
            return false;
        }
        let (known_wanted, known_given) = (self.known(wanted), self.known(given));
        match (&known_wanted, &known_given) {
            (Type::Variable(a), Type::Variable(b)) if a == b => true,
            (Type::Variable(number), other) | (other, Type::Variable(number)) => self.decide(*number, other),
            (a, b) if a.is_dyn() || b.is_dyn() => {
                // A letter that was taken for something narrower stands for anything from now on.
                if let Type::Variable(number) = wanted
                    && b.is_dyn()
                {
                    self.set(*number, Type::Dyn);
                }
                true
            }
            (Type::List(a), Type::List(b)) | (Type::Optional(a), Type::Optional(b)) => self.unify(a, b, depth + 1),
            (Type::Map(a), Type::Map(b)) => self.unify(&a.0, &b.0, depth + 1) && self.unify(&a.1, &b.1, depth + 1),
            (Type::Type(_), Type::Type(_)) => true,
            (Type::Null, b) => may_be_null(b),
            (a, Type::Null) => may_be_null(a),
            (a, b) => a == b,
        }
    }

    fn decide(&mut self, number: u32, kind: &Type) -> bool {
        if self.mentions(kind, number, 0) {
            return false;
        }
        self.set(number, kind.clone());
        true
    }

    fn mentions(&self, kind: &Type, number: u32, depth: usize) -> bool {
        if depth > 300 {
            return true;
        }
        match self.known(kind) {
            Type::Variable(other) => other == number,
            Type::List(item) | Type::Optional(item) | Type::Type(item) => self.mentions(&item, number, depth + 1),
            Type::Map(pair) => self.mentions(&pair.0, number, depth + 1) || self.mentions(&pair.1, number, depth + 1),
            _ => false,
        }
    }

    /// The one of two types that both fit.
    pub(super) fn more_general(&self, a: Type, b: Type) -> Type {
        match (self.known(&a), self.known(&b)) {
            (Type::Dyn, _) | (_, Type::Dyn) => Type::Dyn,
            (Type::Null, other) => other,
            (Type::List(x), Type::List(y)) => Type::list(self.more_general((*x).clone(), (*y).clone())),
            (Type::Map(x), Type::Map(y)) => {
                let key = self.more_general(x.0.clone(), y.0.clone());
                Type::map(key, self.more_general(x.1.clone(), y.1.clone()))
            }
            _ => a,
        }
    }
}

fn may_be_null(kind: &Type) -> bool {
    matches!(
        kind,
        Type::Null | Type::Timestamp | Type::Duration | Type::Opaque(_) | Type::Object(_) | Type::Optional(_)
    )
}
