//! Expressions about who somebody is: over the claims of a token, and over the user that is made of them.

use std::sync::LazyLock;

use cel::{Environment, Program, Type};

/// The names that expressions over claims may use.
static CLAIMS: LazyLock<Environment> =
    LazyLock::new(|| super::environment().spelled().variable("claims", Type::map(Type::String, Type::Dyn)).build());
/// The names that expressions over a user may use.
static USER: LazyLock<Environment> = LazyLock::new(|| {
    let texts = || Type::list(Type::String);
    let fields = [
        ("username".to_owned(), Type::String),
        ("uid".to_owned(), Type::String),
        ("groups".to_owned(), texts()),
        ("extra".to_owned(), Type::map(Type::String, texts())),
    ];
    let user = "kubernetes.UserInfo";
    super::environment().spelled().object(user, fields).variable("user", Type::object(user)).build()
});

/// The purpose of an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Makes something of the claims.
    Claims,
    /// Says whether the claims will do.
    ClaimsCheck,
    /// Says whether the user will do.
    UserCheck,
}

/// The program of an expression. The error is what upstream says behind the value of the field.
pub fn compile(purpose: Purpose, expression: &str) -> Result<Program, String> {
    let environment = if purpose == Purpose::UserCheck { &*USER } else { &*CLAIMS };
    let program = environment.compile_any(expression).map_err(|error| super::why(&error))?;
    match (purpose, program.result_type()) {
        (Purpose::Claims, _) | (_, Type::Bool) => Ok(program),
        _ => Err("must evaluate to bool".to_owned()),
    }
}

/// Whether an expression asks for a claim by its name: `claims.NAME` or `claims.?NAME`.
pub fn selects(expression: &str, claim: &str) -> bool {
    cel::selects(expression, "claims", claim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_found_in_expressions() {
        let check = |text: &str, expected: bool| assert_eq!(selects(text, "email"), expected, "{text}");
        check("claims.email", true);
        check("'a:' + claims . email", true);
        check("claims.?email.orValue('')", true);
        check("has(claims.email) ? claims.sub : ''", true);
        check("claims.email_verified", false);
        check("'claims.email'", false);
        check("\"\\\"claims.email\"", false);
        check("other.claims.email", false);
        check("myclaims.email", false);
        check("claims.a.email", false);
        check("claims.", false);
        check("claims.sub // claims.email", false);
        check("r'\\' + claims.email", true);
        check("\"\"\"it's\"\"\" + claims.email", true);
        check("{claims.?email: \"panda\"}", true);
        check("{\"fancy\": claims.?email}", true);
        check("[\"a\"].map(i, i + claims.email)", true);
        check("['yay', string(claims.email), 'panda'].join(' ')", true);
        check("claims.email.trim()", true);
        check("claims.?emails", false);
    }

    #[test]
    fn names_that_are_none_are_spelled_out() {
        let check = |name: &str, spelled: &str| {
            assert_eq!(cel::escaped(name).as_deref(), Some(spelled));
            assert_eq!(cel::unescaped(spelled).as_deref(), Some(name));
        };
        check("a.a", "a__dot__a");
        check("a__a", "a__underscores__a");
        check("a.-/__a", "a__dot____dash____slash____underscores__a");
        check("a._a", "a__dot___a");
        check("a__.__a", "a__underscores____dot____underscores__a");
        check("a___a", "a__underscores___a");
        check("a____a", "a__underscores____underscores__a");
        check("a__dot__a", "a__underscores__dot__underscores__a");
        check(".a", "__dot__a");
        check("namespace", "__namespace__");
        check("true", "__true__");
        check("has", "has");
        check("_if", "_if");
        check("aNamespace", "aNamespace");
        for none in ["", "@", "1up", "a b"] {
            assert_eq!(cel::escaped(none), None, "{none}");
        }
        for none in ["a__if__", "a__other__b", "__dots__"] {
            assert_eq!(cel::unescaped(none), None, "{none}");
        }
    }

    #[test]
    fn expressions_are_what_their_purpose_wants() {
        let check = |purpose: Purpose, text: &str, expected: &str| {
            let said = compile(purpose, text).err().unwrap_or_default();
            assert!(if expected.is_empty() { said.is_empty() } else { said.contains(expected) }, "{text}: {said}");
        };
        check(Purpose::Claims, "claims.sub", "");
        check(Purpose::Claims, "claims.roles.split(',')", "");
        check(Purpose::ClaimsCheck, "claims.hd == 'example.com'", "");
        check(Purpose::ClaimsCheck, "claims.hd", "must evaluate to bool");
        check(Purpose::UserCheck, "!user.username.startsWith('system:')", "");
        check(Purpose::UserCheck, "user.name == ''", "compilation failed");
        check(Purpose::UserCheck, "claims.sub == ''", "compilation failed");
        let said = compile(Purpose::Claims, "claims.sub.find('(')").err().unwrap_or_default();
        assert!(said.starts_with("program instantiation failed: error parsing regexp: "), "{said}");
    }
}
