//! Browsers, load balancers and the server's end: upstream's flags.

use std::time::Duration;

use apiserver::http::web::Web;
use clap::Args;

use super::value;

/// More would keep clients busy with connections.
const GOAWAY_MAX: f64 = 0.02;

#[derive(Args, Clone, Debug)]
pub struct WebFlags {
    /// Pages of these origins may read answers: regular expressions, which should begin with ^ or // and end with $ or :
    #[arg(long, value_delimiter = ',', value_name = "PATTERNS")]
    cors_allowed_origins: Vec<String>,
    /// The directives about TLS for browsers (HSTS), such as `max-age=31536000,includeSubDomains,preload`
    #[arg(long, value_delimiter = ',', value_name = "DIRECTIVES")]
    strict_transport_security_directives: Vec<String>,
    /// The part of requests over HTTP/2 that end their connection, so that clients spread over servers: 0 to 0.02
    #[arg(long, default_value_t = 0.0, value_name = "CHANCE")]
    goaway_chance: f64,
    /// How long the server answers on when it is asked to end, while /readyz says that it ends
    #[arg(long, default_value = "0s", value_name = "DURATION", value_parser = value::duration)]
    pub shutdown_delay_duration: Duration,
    /// Listen on while the server ends, until what was asked before is answered: whoever asks meanwhile is told to come again (429)
    #[arg(long, action = clap::ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true", value_name = "BOOL")]
    pub shutdown_send_retry_after: bool,
    /// The time in which watches are ended when the server ends, little by little, so that their clients do not all come to another
    /// server at once; 0 ends all of them at once
    #[arg(long, default_value = "0s", value_name = "DURATION", value_parser = value::duration)]
    pub shutdown_watch_termination_grace_period: Duration,
}

impl WebFlags {
    /// The settings, or what is wrong with a flag.
    pub fn settings(&self) -> anyhow::Result<Web> {
        for pattern in &self.cors_allowed_origins {
            let begins = pattern.starts_with('^') || pattern.starts_with("//");
            // Upstream's words: without these a pattern fits more origins than it looks.
            anyhow::ensure!(
                begins || pattern.starts_with("(?"),
                "--cors-allowed-origins has an invalid value, the regular expression {pattern:?} must match the beginning: \
                 it must start with \"^\" or \"//\""
            );
            anyhow::ensure!(
                pattern.ends_with('$') || pattern.ends_with(':') || pattern.ends_with(')'),
                "--cors-allowed-origins has an invalid value, the regular expression {pattern:?} must match the end of \
                 the host: it must end with \"$\" or \":\""
            );
        }
        anyhow::ensure!(
            (0.0..=GOAWAY_MAX).contains(&self.goaway_chance),
            "--goaway-chance can not be less than 0 or greater than {GOAWAY_MAX}"
        );
        let web = Web::default().origins(&self.cors_allowed_origins);
        let web = web.map_err(|why| anyhow::anyhow!("--cors-allowed-origins: {why}"))?;
        let web = web.transport_security(&self.directives()?);
        let web = web.map_err(|why| anyhow::anyhow!("--strict-transport-security-directives: {why}"))?;
        Ok(web.goaway(self.goaway_chance))
    }

    fn directives(&self) -> anyhow::Result<Vec<String>> {
        let directives = &self.strict_transport_security_directives;
        for directive in directives {
            let known = matches!(directive.as_str(), "includeSubDomains" | "preload");
            let age = directive.strip_prefix("max-age=").is_some_and(|seconds| seconds.parse::<u64>().is_ok());
            anyhow::ensure!(
                known || age,
                "--strict-transport-security-directives invalid, allowed values: max-age=expireTime, includeSubDomains, \
                 preload. see https://tools.ietf.org/html/rfc6797#section-6.1 for more information"
            );
        }
        Ok(directives.clone())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        web: WebFlags,
    }

    #[test]
    fn wrong_settings_are_refused() {
        let check = |flag: &str, expected: &str| {
            let flags = Flags::parse_from(["test", flag]).web;
            let error = flags.settings().err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.starts_with(expected) && error.is_empty() == expected.is_empty(), "{flag}: {error}");
        };
        check("--cors-allowed-origins=^https://a\\.example$,//b.example(:|$)", "");
        check("--cors-allowed-origins=a.example$", "--cors-allowed-origins has an invalid value");
        check("--cors-allowed-origins=//a.example", "--cors-allowed-origins has an invalid value");
        check("--cors-allowed-origins=^($", "--cors-allowed-origins: \"^($\" is no regular expression");
        check("--strict-transport-security-directives=max-age=5,preload,includeSubDomains", "");
        check("--strict-transport-security-directives=max-age=soon", "--strict-transport-security-directives invalid");
        check("--goaway-chance=0.02", "");
        check("--goaway-chance=0.03", "--goaway-chance can not be less than 0 or greater than 0.02");
    }
}
