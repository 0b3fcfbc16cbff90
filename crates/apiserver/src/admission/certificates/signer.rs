//! The right to do something in the name of a signer.
//! Upstream counterpart: plugin/pkg/admission/certificates/util.go.

use api::status::StatusError;

use super::request::GROUP;
use crate::{
    admission::{
        attributes::Attributes,
        plugin::{Context, forbid, text},
    },
    auth,
};

/// The user may do it for the signer that the stored request names. The new one is not asked: it could name another.
pub(super) async fn require(context: &Context, attributes: &Attributes<'_>, verb: &str) -> Result<(), StatusError> {
    let signer = attributes.old.map(|old| text(old, "/spec/signerName")).unwrap_or_default();
    if may_for_signer(context, attributes, verb, signer).await {
        return Ok(());
    }
    Err(forbid(
        attributes,
        format!("user not permitted to {verb} requests with signerName {}", api::validation::field::show(signer)),
    ))
}

/// Whether the user may do something in the name of this signer, or of all signers of its domain.
pub(super) async fn may_for_signer(context: &Context, attributes: &Attributes<'_>, verb: &str, signer: &str) -> bool {
    let domain = signer.split_once('/').map_or_else(String::new, |(domain, _)| format!("{domain}/*"));
    let may = async |name: &str| {
        let a = auth::Attributes {
            version: "*",
            name,
            ..auth::Attributes::resource(attributes.user, verb, GROUP, "signers")
        };
        context.authorizer.authorize(&a).await.allowed()
    };
    may(signer).await || (!domain.is_empty() && may(&domain).await)
}
