//! `/debug/pprof/`: where the process's time goes. Only who may do everything on the node may ask.

use api::rules::url::query_pairs;
use http::{HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use profile::page::{self, Asked};

use super::answer::{Answer, reply, text};

/// No list of addresses is longer.
const BODY_BYTES: usize = 1 << 16;

pub async fn answer(kind: &str, request: Request<Incoming>) -> Answer {
    let query = request.uri().query().unwrap_or_default().to_owned();
    let given = |name: &str| query_pairs(&query).find(|(key, _)| key == name).map(|(_, value)| value);
    let (seconds, debug) = (given("seconds"), given("debug"));
    let posted = match *request.method() == http::Method::POST {
        false => query.clone().into_bytes(),
        true => match Limited::new(request.into_body(), BODY_BYTES).collect().await {
            Ok(body) => body.to_bytes().to_vec(),
            Err(_) => return text(StatusCode::PAYLOAD_TOO_LARGE, "the list of addresses is too long\n".to_owned()),
        },
    };
    let addresses = String::from_utf8_lossy(&posted);
    let asked = Asked { kind, seconds: seconds.as_deref(), debug: debug.as_deref(), addresses: &addresses };
    let page = page::answer(asked).await;
    let code = StatusCode::from_u16(page.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut answer = reply(code, page.form, page.body);
    let headers = answer.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if let Some(disposition) = page.file.and_then(|name| HeaderValue::from_str(&name).ok()) {
        headers.insert(header::CONTENT_DISPOSITION, disposition);
    }
    answer
}
