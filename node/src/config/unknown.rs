//! Variables that look like settings of this program and are none: misspelled, or from another version or program.

use super::{Environment, SETTINGS};

/// What is read besides the settings: by `serve` itself, and by the commands that call a server.
const OTHERS: [&str; 7] = ["CONFIG", "ADMIN_KEY", "ADMIN_URL", "URL", "KEY", "CA", "TEST"];
/// How alike two names must be for one to be taken as a misspelling of the other, from 0 to 1.
const ALIKE: f64 = 0.75;

/// A line for each variable that begins with `BAE_` and that nothing reads. The values are not shown.
pub(crate) fn unknown_variables(environment: &dyn Environment) -> Vec<String> {
    let known: Vec<String> =
        SETTINGS.iter().map(|name| name.to_ascii_uppercase()).chain(OTHERS.map(str::to_owned)).collect();
    let names = environment.names().into_iter();
    let unknown = names.filter_map(|name| Some((name.strip_prefix("BAE_")?.to_owned(), name))).filter(|(rest, _)| {
        !known.contains(rest) && !rest.starts_with("TEST_") && !rest.starts_with("CI_") && !is_service_link(rest)
    });
    unknown
        .map(|(rest, name)| match nearest(&rest, &known) {
            Some(meant) => format!("{name} is no setting and is ignored; BAE_{meant} is the nearest that there is"),
            None => format!("{name} is no setting and is ignored; docs/settings.md lists them"),
        })
        .collect()
}

/// Kubernetes tells every pod about a Service that is called `bae` in variables like `BAE_PORT_8080_TCP`.
fn is_service_link(rest: &str) -> bool {
    rest == "PORT"
        || rest.starts_with("PORT_")
        || rest.starts_with("SERVICE_")
        || rest.contains("_SERVICE_")
        || rest.contains("_PORT")
}

fn nearest<'a>(rest: &str, known: &'a [String]) -> Option<&'a str> {
    // Words that other servers use for the same.
    if let "DB" | "DB_URL" | "DB_PATH" | "DATABASE" | "DATABASE_PATH" | "POSTGRES_URL" = rest {
        return Some("DATABASE_URL");
    }
    if rest == "REDIS" {
        return Some("REDIS_URL");
    }
    let alike = known.iter().map(|name| (strsim::jaro_winkler(rest, name), name.as_str()));
    alike.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(alike, _)| *alike >= ALIKE).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn lines(names: &[&str]) -> Vec<String> {
        let environment: BTreeMap<String, String> = names.iter().map(|name| ((*name).into(), "hush".into())).collect();
        unknown_variables(&environment)
    }

    #[test]
    fn known_and_foreign_variables_are_no_matter() {
        let known = [
            "BAE_ADDR",
            "BAE_TLS_KEY",
            "BAE_CONFIG",
            "BAE_ADMIN_KEY",
            "BAE_URL",
            "PATH",
            "BAESRV",
            "BAE_TEST_REDIS_URL",
        ];
        let links = ["BAE_PORT", "BAE_PORT_8080_TCP_ADDR", "BAE_SERVICE_HOST", "BAE_ADMIN_SERVICE_PORT"];
        assert_eq!(lines(&known), Vec::<String>::new());
        assert_eq!(lines(&links), Vec::<String>::new());
    }

    #[test]
    fn a_mistake_is_told_with_what_was_meant() {
        for (given, meant) in [
            ("BAE_DB_PATH", "BAE_DATABASE_URL"),
            ("BAE_ADRR", "BAE_ADDR"),
            ("BAE_REDIS", "BAE_REDIS_URL"),
            ("BAE_TURN_TIMEOUTS", "BAE_TURN_TIMEOUT"),
            ("BAE_LOG_LEVEL", "BAE_LOG"),
        ] {
            let said = lines(&[given]);
            assert_eq!(said.len(), 1);
            assert!(said[0].starts_with(given) && said[0].contains(&format!("{meant} ")), "{said:?}");
            assert!(!said[0].contains("hush"));
        }
        assert!(lines(&["BAE_QQXZ"])[0].contains("docs/settings.md"));
    }
}
