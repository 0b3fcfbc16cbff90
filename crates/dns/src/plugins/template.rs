//! Answers made of questions by patterns. Pure.

use crate::{
    corefile::template::{Given, Template, Text},
    question::{Answer, Question, within, zone_of},
};

/// The answer of the first template that is about the question; `None` means that the next plugin is asked.
pub fn answer(question: &Question, templates: &[Template]) -> Option<Answer> {
    for template in templates {
        let Some(zone) = zone_of(&question.text, &template.zones) else { continue };
        if template.class.is_some_and(|c| c != question.class) || template.kind.is_some_and(|k| k != question.kind) {
            continue;
        }
        let name = format!("{}.", question.text);
        let Some(caught) = template.patterns.iter().find_map(|pattern| pattern.captures(&name)) else {
            if template.through.iter().flatten().any(|zone| within(&question.text, zone)) {
                continue;
            }
            return Some(Answer::failed());
        };
        let given = Given {
            name: &question.text,
            zone,
            class: question.class,
            kind: question.kind,
            remote: question.packet.from.ip(),
            caught,
        };
        return Some(fill(template, &given).unwrap_or_else(|why| {
            tracing::debug!(why, "a template made no record");
            Answer::failed()
        }));
    }
    None
}

fn fill(template: &Template, given: &Given<'_>) -> Result<Answer, String> {
    let records = |texts: &[Text]| texts.iter().map(|text| text.record(given)).collect::<Result<Vec<_>, _>>();
    Ok(Answer {
        code: template.code,
        authorities: records(&template.authorities)?,
        additionals: records(&template.additionals)?,
        ..Answer::own(records(&template.answers)?)
    })
}
