//! The user that claims stand for: by the names of claims, or by expressions, and only where the rules hold.

use std::collections::BTreeMap;

use api::rules::cel::identity::{Purpose, compile};
use cel::{Budget, Composition, PER_CALL_LIMIT, Program, Value as Cel, Variables};
use json::{Map, Number, Value, json};

use super::{ClaimRule, Settings, Source};
use crate::auth::{
    User,
    authn::{certificate::CREDENTIAL_ID, token::Rejected},
};

/// An expression with its program.
struct Expression {
    text: String,
    program: Program,
}

impl Expression {
    fn new(purpose: Purpose, text: &str) -> Result<Self, String> {
        Ok(Expression { text: text.to_owned(), program: compile(purpose, text)? })
    }

    /// Its result over a variable, which `read` makes something of.
    fn evaluate<T>(
        &self,
        (name, value): (&str, &Value),
        read: impl FnOnce(Cel<'_>) -> Result<T, &'static str>,
    ) -> Result<T, String> {
        let variables = Variables::new().with(name, Cel::json(value));
        let mut budget = Budget::new(PER_CALL_LIMIT);
        let result = self.program.evaluate_with(&Composition::new(&[], variables), &mut budget);
        let result = result.map_err(|why| format!("expression '{}' resulted in error: {why}", self.text))?;
        read(result).map_err(str::to_owned)
    }

    fn holds(&self, variable: (&str, &Value), message: &str) -> Result<(), String> {
        let wrong = "validation expression must return a boolean";
        let held = self.evaluate(variable, |value| match value {
            Cel::Bool(held) => Ok(held),
            _ => Err(wrong),
        })?;
        if held { Ok(()) } else { Err(format!("validation expression '{}' failed: {message}", self.text)) }
    }
}

enum Part {
    Nothing,
    Claim { name: String, prefix: String },
    Expression(Expression),
}

impl Part {
    fn new(source: &Source) -> Result<Self, String> {
        Ok(match source {
            Source::Nothing => Part::Nothing,
            Source::Claim { name, prefix } => Part::Claim { name: name.clone(), prefix: prefix.clone() },
            Source::Expression(text) => Part::Expression(Expression::new(Purpose::Claims, text)?),
        })
    }
}

pub(super) struct Mapping {
    username: Part,
    groups: Part,
    uid: Part,
    extra: Vec<(String, Expression)>,
    values: Vec<(String, String)>,
    claim_rules: Vec<(Expression, String)>,
    user_rules: Vec<(Expression, String)>,
}

/// The text in a claim.
fn claim<'c>(claims: &'c Value, name: &str) -> Result<&'c str, String> {
    match claims.get(name) {
        None => Err("claim not present".to_owned()),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err("it is no text".to_owned()),
    }
}

/// Numbers as Go reads them where it does not know their type: all of them doubles, which is how expressions find them.
fn doubles(value: &mut Value) {
    match value {
        Value::Number(number) => {
            if let Some(double) = number.as_f64().and_then(Number::from_f64) {
                *number = double;
            }
        }
        Value::Array(list) => list.iter_mut().for_each(doubles),
        Value::Object(fields) => fields.iter_mut().for_each(|(_, value)| doubles(value)),
        _ => {}
    }
}

fn one_text(value: Cel<'_>, wrong: &'static str) -> Result<String, &'static str> {
    value.as_str().map(str::to_owned).ok_or(wrong)
}

/// A text or a list of texts; empty ones are left out.
fn texts(value: Cel<'_>) -> Result<Vec<String>, &'static str> {
    const WRONG: &str = "expression must return a string or a list of strings";
    let all = match value {
        Cel::Null => Vec::new(),
        Cel::String(text) => vec![text.to_string()],
        Cel::List(list) => list.iter().map(|item| one_text(item, WRONG)).collect::<Result<_, _>>()?,
        _ => return Err(WRONG),
    };
    Ok(all.into_iter().filter(|text| !text.is_empty()).collect())
}

impl Mapping {
    pub fn new(settings: &Settings) -> Result<Self, String> {
        let mut mapping = Mapping {
            username: Part::new(&settings.username)?,
            groups: Part::new(&settings.groups)?,
            uid: Part::new(&settings.uid)?,
            extra: Vec::new(),
            values: Vec::new(),
            claim_rules: Vec::new(),
            user_rules: Vec::new(),
        };
        for (key, text) in &settings.extra {
            mapping.extra.push((key.clone(), Expression::new(Purpose::Claims, text)?));
        }
        for rule in &settings.claim_rules {
            match rule {
                ClaimRule::Value { claim, value } => mapping.values.push((claim.clone(), value.clone())),
                ClaimRule::Expression { expression, message } => {
                    let rule = Expression::new(Purpose::ClaimsCheck, expression)?;
                    mapping.claim_rules.push((rule, message.clone()));
                }
            }
        }
        for (text, message) in &settings.user_rules {
            mapping.user_rules.push((Expression::new(Purpose::UserCheck, text)?, message.clone()));
        }
        Ok(mapping)
    }

    pub fn user(&self, claims: Map) -> Result<User, Rejected> {
        let mut claims = Value::Object(claims);
        doubles(&mut claims);
        let user = User {
            name: self.username(&claims)?,
            groups: self.groups(&claims)?,
            uid: self.uid(&claims)?,
            extra: self.extra(&claims)?,
        };
        for (name, wanted) in &self.values {
            if claims.get(name).is_none() {
                return Err(format!("oidc: required claim {name} not present in ID token"));
            }
            let given = claim(&claims, name).map_err(|why| format!("oidc: parse claim {name}: {why}"))?;
            if given != wanted {
                return Err(format!(
                    "oidc: required claim {name} value does not match. Got = {given}, want = {wanted}"
                ));
            }
        }
        for (rule, message) in &self.claim_rules {
            let held = rule.holds(("claims", &claims), message);
            held.map_err(|why| format!("oidc: error evaluating claim validation expression: {why}"))?;
        }
        if !self.user_rules.is_empty() {
            let seen = json!({"username": user.name, "uid": user.uid, "groups": user.groups, "extra": user.extra});
            for (rule, message) in &self.user_rules {
                let held = rule.holds(("user", &seen), message);
                held.map_err(|why| format!("oidc: error evaluating user info validation rule: {why}"))?;
            }
        }
        Ok(user)
    }

    fn username(&self, claims: &Value) -> Result<String, Rejected> {
        let name = match &self.username {
            Part::Nothing => String::new(),
            Part::Expression(expression) => {
                let wrong = "username claim expression must return a string";
                let name = expression.evaluate(("claims", claims), |value| one_text(value, wrong));
                name.map_err(|why| format!("oidc: error evaluating username claim expression: {why}"))?
            }
            Part::Claim { name, prefix } => {
                let given =
                    claim(claims, name).map_err(|why| format!("oidc: parse username claims {name:?}: {why}"))?;
                if name == "email" {
                    match claims.get("email_verified") {
                        None | Some(Value::Bool(true)) => {}
                        Some(Value::Bool(false) | Value::Null) => return Err("oidc: email not verified".to_owned()),
                        Some(_) => {
                            return Err("oidc: parse 'email_verified' claim: it is neither true nor false".to_owned());
                        }
                    }
                }
                if given.is_empty() { String::new() } else { format!("{prefix}{given}") }
            }
        };
        if name.is_empty() { Err("oidc: empty username is not allowed".to_owned()) } else { Ok(name) }
    }

    fn groups(&self, claims: &Value) -> Result<Vec<String>, Rejected> {
        match &self.groups {
            Part::Nothing => Ok(Vec::new()),
            Part::Expression(expression) => expression
                .evaluate(("claims", claims), texts)
                .map_err(|why| format!("oidc: error evaluating group claim expression: {why}")),
            Part::Claim { name, prefix } => {
                let wrong = || format!("oidc: parse groups claim {name:?}: it is neither a text nor a list of texts");
                let prefixed = |group: &str| format!("{prefix}{group}");
                match claims.get(name) {
                    None | Some(Value::Null) => Ok(Vec::new()),
                    Some(Value::String(one)) => Ok(vec![prefixed(one)]),
                    Some(Value::Array(list)) => {
                        list.iter().map(|group| group.as_str().map(prefixed).ok_or_else(wrong)).collect()
                    }
                    Some(_) => Err(wrong()),
                }
            }
        }
    }

    fn uid(&self, claims: &Value) -> Result<String, Rejected> {
        match &self.uid {
            Part::Nothing => Ok(String::new()),
            Part::Claim { name, .. } => {
                let uid = claim(claims, name).map(str::to_owned);
                uid.map_err(|why| format!("oidc: parse uid claim {name:?}: {why}"))
            }
            Part::Expression(expression) => {
                let wrong = "uid claim expression must return a string";
                let uid = expression.evaluate(("claims", claims), |value| one_text(value, wrong));
                uid.map_err(|why| format!("oidc: error evaluating uid claim expression: {why}"))
            }
        }
    }

    fn extra(&self, claims: &Value) -> Result<BTreeMap<String, Vec<String>>, Rejected> {
        let mut extra = BTreeMap::new();
        if let Ok(id) = claim(claims, "jti")
            && !id.is_empty()
        {
            extra.insert(CREDENTIAL_ID.to_owned(), vec![format!("JTI={id}")]);
        }
        for (key, expression) in &self.extra {
            let values = expression.evaluate(("claims", claims), texts);
            let values = values
                .map_err(|why| format!("oidc: error evaluating extra claim expression: {}: {why}", expression.text))?;
            if !values.is_empty() {
                extra.insert(key.clone(), values);
            }
        }
        Ok(extra)
    }
}
