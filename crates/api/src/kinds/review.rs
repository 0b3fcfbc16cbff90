//! Reviews: questions about users and what they may do, answered at once and never stored; and the request for a token.

use k8s_openapi::api::authentication::v1::{SelfSubjectReview, TokenRequest, TokenReview};
use k8s_openapi::api::authorization::v1::{
    LocalSubjectAccessReview, SelfSubjectAccessReview, SelfSubjectRulesReview, SubjectAccessReview,
};

use crate::kind::Kind;
use crate::validation::names::NameRule;

const CREATE: &[&str] = &["create"];

pub const SELF_SUBJECT_REVIEW: Kind<SelfSubjectReview> = Kind { verbs: CREATE, name: NameRule::Own, ..Kind::BASE };
pub const TOKEN_REVIEW: Kind<TokenReview> = Kind { verbs: CREATE, name: NameRule::Own, ..Kind::BASE };
pub const LOCAL_SUBJECT_ACCESS_REVIEW: Kind<LocalSubjectAccessReview> =
    Kind { verbs: CREATE, name: NameRule::Own, ..Kind::BASE };
pub const SELF_SUBJECT_ACCESS_REVIEW: Kind<SelfSubjectAccessReview> =
    Kind { verbs: CREATE, name: NameRule::Own, ..Kind::BASE };
pub const SELF_SUBJECT_RULES_REVIEW: Kind<SelfSubjectRulesReview> =
    Kind { verbs: CREATE, name: NameRule::Own, ..Kind::BASE };
pub const SUBJECT_ACCESS_REVIEW: Kind<SubjectAccessReview> = Kind { verbs: CREATE, name: NameRule::Own, ..Kind::BASE };

/// The body of a ServiceAccount's `token` subresource.
pub const TOKEN_REQUEST: Kind<TokenRequest> = Kind {
    verbs: &[],
    name: NameRule::Own,
    default: Some(|request| {
        request.spec.expiration_seconds.get_or_insert(3600);
    }),
    ..Kind::BASE
};
