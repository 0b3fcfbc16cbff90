//! FlowSchema and PriorityLevelConfiguration: which requests wait, and for how many at once.

mod validation;

use k8s_openapi::api::flowcontrol::v1::{
    FlowSchema, FlowSchemaSpec, PriorityLevelConfiguration, PriorityLevelConfigurationSpec, QueuingConfiguration,
};

use crate::kind::cell;
use crate::kind::{Generation, Kind, StatusMetadata, Target, age, col, name};
use crate::validation::field::Errors;

pub const FLOW_SCHEMA: Kind<FlowSchema> = Kind {
    validate: Some(validation::schema),
    validate_status: Some(|new, _| validation::status(new)),
    validate_update: Some(
        |new, _, target| if target == Target::Status { Errors::new() } else { validation::schema(new) },
    ),
    status: true,
    status_metadata: StatusMetadata::Stays,
    generation: Generation::CountsChangesOf("spec"),
    default: Some(|schema| {
        if let Some(spec) = &mut schema.spec {
            unless_given(&mut spec.matching_precedence, 1000);
        }
    }),
    columns: &[
        name(),
        col("PriorityLevel", "The priority level of its requests.", |s, _| {
            cell::text(spec(s).map(|s| &s.priority_level_configuration.name))
        }),
        col("MatchingPrecedence", "Schemas with a smaller number are asked first.", |s, _| {
            cell::shown_or(spec(s).and_then(|s| s.matching_precedence), "0")
        }),
        col("DistinguisherMethod", "What tells flows apart.", |s, _| {
            cell::text_or(spec(s).and_then(|s| s.distinguisher_method.as_ref()).map(|d| &d.type_), "<none>")
        }),
        age(),
        col("MissingPL", "references a broken or non-existent PriorityLevelConfiguration", |s, _| {
            let mut conditions = s.status.iter().flat_map(|s| s.conditions.iter().flatten());
            let dangling = conditions.find(|c| c.type_.as_deref() == Some("Dangling"));
            cell::text_or(dangling.and_then(|c| c.status.as_ref()), "?")
        }),
    ],
    ..Kind::BASE
};

fn spec(schema: &FlowSchema) -> Option<&FlowSchemaSpec> {
    schema.spec.as_ref()
}

pub const PRIORITY_LEVEL_CONFIGURATION: Kind<PriorityLevelConfiguration> = Kind {
    validate: Some(validation::level),
    validate_status: Some(|new, _| validation::status(new)),
    validate_update: Some(
        |new, _, target| if target == Target::Status { Errors::new() } else { validation::level(new) },
    ),
    status: true,
    status_metadata: StatusMetadata::Stays,
    generation: Generation::CountsChangesOf("spec"),
    default: Some(default_level),
    columns: &[
        name(),
        col("Type", "Exempt or Limited.", |l, _| cell::text(level(l).map(|s| &s.type_))),
        col("NominalConcurrencyShares", "Its share of the requests at once.", |l, _| {
            let limited = level(l).and_then(|s| s.limited.as_ref());
            cell::shown_or(limited.and_then(|l| l.nominal_concurrency_shares), "<none>")
        }),
        col("Queues", "Number of its queues.", |l, _| cell::shown_or(queuing(l).and_then(|q| q.queues), "<none>")),
        col("HandSize", "Number of queues that one flow may use.", |l, _| {
            cell::shown_or(queuing(l).and_then(|q| q.hand_size), "<none>")
        }),
        col("QueueLengthLimit", "Number of requests that a queue holds.", |l, _| {
            cell::shown_or(queuing(l).and_then(|q| q.queue_length_limit), "<none>")
        }),
        age(),
    ],
    ..Kind::BASE
};

fn level(level: &PriorityLevelConfiguration) -> Option<&PriorityLevelConfigurationSpec> {
    level.spec.as_ref()
}

fn queuing(configuration: &PriorityLevelConfiguration) -> Option<&QueuingConfiguration> {
    level(configuration)?.limited.as_ref()?.limit_response.as_ref()?.queuing.as_ref()
}

fn default_level(level: &mut PriorityLevelConfiguration) {
    let Some(spec) = &mut level.spec else { return };
    if let Some(exempt) = &mut spec.exempt {
        exempt.nominal_concurrency_shares.get_or_insert(0);
        exempt.lendable_percent.get_or_insert(0);
    }
    if let Some(limited) = &mut spec.limited {
        limited.nominal_concurrency_shares.get_or_insert(30);
        limited.lendable_percent.get_or_insert(0);
        if let Some(queuing) = limited.limit_response.as_mut().and_then(|r| r.queuing.as_mut()) {
            unless_given(&mut queuing.queues, 64);
            unless_given(&mut queuing.hand_size, 8);
            unless_given(&mut queuing.queue_length_limit, 50);
        }
    }
}

/// These fields are no pointers in Go: a zero stands for nothing.
fn unless_given(field: &mut Option<i32>, default: i32) {
    if field.unwrap_or(0) == 0 {
        *field = Some(default);
    }
}
