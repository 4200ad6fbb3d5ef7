//! The headers and problems that the gateway adds to an API, as OpenAPI 3.1, to be merged into the API's own
//! description.

use std::collections::BTreeMap;

use semel::http::{Code, Profile};
use serde_json::{Value, json};

use super::problem::GatewayError;

/// One problem, of the layer or of the gateway.
struct ProblemKind {
    code: &'static str,
    status: u16,
    title: &'static str,
    retryable: bool,
}

fn all() -> Vec<ProblemKind> {
    let layer = Code::ALL.into_iter().map(|code| ProblemKind {
        code: code.as_str(),
        status: code.status(Profile::Classic).as_u16(),
        title: code.title(),
        retryable: code.retryable(),
    });
    let gateway = GatewayError::ALL.into_iter().map(|error| ProblemKind {
        code: error.code(),
        status: error.status().as_u16(),
        title: error.title(),
        retryable: error.retryable(),
    });
    layer.chain(gateway).collect()
}

/// The description as text.
pub(super) fn text() -> String {
    let mut text = serde_json::to_string_pretty(&document()).unwrap_or_default();
    text.push('\n');
    text
}

fn document() -> Value {
    let (mut by_status, mut codes) = (BTreeMap::<u16, Vec<ProblemKind>>::new(), Vec::new());
    for problem in all() {
        if !codes.contains(&problem.code) {
            codes.push(problem.code);
        }
        by_status.entry(problem.status).or_default().push(problem);
    }
    let responses: serde_json::Map<String, Value> =
        by_status.iter().map(|(status, problems)| (format!("Problem{status}"), response(problems))).collect();
    let referred: serde_json::Map<String, Value> = by_status
        .keys()
        .map(|status| {
            (status.to_string(), json!({ "$ref": format!("#/components/responses/Problem{status}") }))
        })
        .collect();
    let mut answers = json!({
        "default": { "$ref": "#/components/responses/Answer" },
        "202": { "$ref": "#/components/responses/Accepted" },
    });
    if let Value::Object(answers) = &mut answers {
        answers.extend(referred);
    }
    let guarded = |method: &str| {
        json!({
            "operationId": format!("{method}Guarded"),
            "summary": "Any guarded operation of the service",
            "parameters": [
                { "$ref": "#/components/parameters/Path" },
                { "$ref": "#/components/parameters/IdempotencyKey" },
            ],
            "requestBody": { "content": { "*/*": { "schema": {} } } },
            "responses": answers,
        })
    };
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "What semel gateway adds to an API",
            "version": env!("CARGO_PKG_VERSION"),
            "summary": "One header to send, a few headers and problems to expect",
            "description": "Merge the components into the description of the service behind. Statuses are those of the classic profile: under ietf a key that is used again for another request is a 422, under stripe a 400.",
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "security": [],
        "paths": {
            "/{path}": {
                "post": guarded("post"),
                "put": guarded("put"),
                "patch": guarded("patch"),
                "delete": guarded("delete"),
            },
            "/.semel/intents/{intent}": {
                "get": {
                    "operationId": "getIntent",
                    "summary": "Where a 202 points to, where an operation is answered with one",
                    "parameters": [{
                        "name": "intent",
                        "in": "path",
                        "required": true,
                        "schema": { "type": "string", "pattern": "^[0-9a-f]{64}\\.[0-9a-f]{32}$" },
                    }],
                    "responses": {
                        "default": { "$ref": "#/components/responses/Answer" },
                        "202": { "$ref": "#/components/responses/Accepted" },
                        "404": { "$ref": "#/components/responses/Problem404" },
                        "409": { "$ref": "#/components/responses/Problem409" },
                    },
                },
            },
        },
        "components": {
            "parameters": {
                "Path": {
                    "name": "path",
                    "in": "path",
                    "required": true,
                    "description": "Any path of the service, slashes included",
                    "schema": { "type": "string" },
                },
                "IdempotencyKey": {
                    "name": "Idempotency-Key",
                    "in": "header",
                    "description": "One for each intent, the same on every retry. Bare or as a structured-field string.",
                    "schema": { "type": "string", "minLength": 1, "maxLength": 255 },
                    "example": "0199a3c2-7d4e-7c31-9f0a-5b2e8c6d4f10",
                },
            },
            "headers": headers(),
            "schemas": {
                "Problem": {
                    "type": "object",
                    "description": "RFC 9457",
                    "required": ["type", "title", "status", "detail", "code", "retryable"],
                    "properties": {
                        "type": { "type": "string", "format": "uri" },
                        "title": { "type": "string" },
                        "status": { "type": "integer" },
                        "detail": { "type": "string" },
                        "code": { "type": "string", "enum": codes },
                        "retryable": {
                            "type": "boolean",
                            "description": "Whether a machine may send the same request again",
                        },
                        "error": { "type": "object", "description": "Under the stripe profile" },
                    },
                },
                "InProgress": {
                    "type": "object",
                    "required": ["state"],
                    "properties": {
                        "state": { "const": "in_progress" },
                        "status_url": { "type": ["string", "null"] },
                    },
                },
            },
            "responses": with(responses, answer(), accepted()),
        },
    })
}

fn with(mut responses: serde_json::Map<String, Value>, answer: Value, accepted: Value) -> Value {
    responses.insert("Answer".to_owned(), answer);
    responses.insert("Accepted".to_owned(), accepted);
    Value::Object(responses)
}

fn answer() -> Value {
    let header = |name: &str| json!({ "$ref": format!("#/components/headers/{name}") });
    json!({
        "description": "The service's own answer, for the first time or again",
        "headers": {
            "Idempotency-Replayed": header("IdempotencyReplayed"),
            "Idempotency-Body": header("IdempotencyBody"),
            "Idempotency-Stored": header("IdempotencyStored"),
            "Idempotency-Guarded": header("IdempotencyGuarded"),
        },
    })
}

fn accepted() -> Value {
    json!({
        "description": "The first request is under way; the result will be where Location points to",
        "headers": { "Retry-After": { "$ref": "#/components/headers/RetryAfter" } },
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/InProgress" } } },
    })
}

fn headers() -> Value {
    let header = |description: &str, schema: Value| json!({ "description": description, "schema": schema });
    json!({
        "IdempotencyReplayed": header("true when the answer was given before", json!({ "const": "true" })),
        "IdempotencyBody": header("The body was too large to keep, or a stream", json!({ "const": "not-kept" })),
        "IdempotencyStored": header("The answer is true, but not remembered yet", json!({ "const": "false" })),
        "IdempotencyGuarded": header("The store was down and the operation ran without it", json!({ "const": "false" })),
        "IdempotencyProblem": header("The problem's code", json!({ "type": "string" })),
        "ShouldRetry": header("Whether a machine may send the same request again", json!({ "enum": ["true", "false"] })),
        "RetryAfter": header("Seconds", json!({ "type": "integer", "minimum": 1 })),
    })
}

fn response(problems: &[ProblemKind]) -> Value {
    let lines: Vec<String> = problems
        .iter()
        .map(|problem| {
            let retry =
                if problem.retryable { "may be retried" } else { "must not be retried automatically" };
            format!("`{}`: {} ({retry})", problem.code, problem.title)
        })
        .collect();
    json!({
        "description": lines.join("; "),
        "headers": {
            "Idempotency-Problem": { "$ref": "#/components/headers/IdempotencyProblem" },
            "x-should-retry": { "$ref": "#/components/headers/ShouldRetry" },
            "Retry-After": { "$ref": "#/components/headers/RetryAfter" },
        },
        "content": { "application/problem+json": { "schema": { "$ref": "#/components/schemas/Problem" } } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHECKED_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");

    #[test]
    fn contract_description_that_is_checked_in_is_the_one_that_is_served() {
        if std::env::var_os(testkit::contract::RENEW).is_some() {
            std::fs::write(CHECKED_IN, text()).unwrap();
        }
        let checked_in = std::fs::read_to_string(CHECKED_IN).unwrap();
        assert_eq!(
            checked_in,
            text(),
            "run this test with {}=1 and commit docs/openapi.json",
            testkit::contract::RENEW
        );
    }

    #[test]
    fn every_problem_is_described() {
        let document = document();
        let codes = document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"].to_string();
        for code in Code::ALL {
            assert!(codes.contains(&format!("\"{}\"", code.as_str())), "{}", code.as_str());
        }
        for error in GatewayError::ALL {
            assert!(codes.contains(&format!("\"{}\"", error.code())), "{}", error.code());
        }
    }

    #[test]
    fn every_reference_leads_somewhere() {
        fn walk<'a>(value: &'a Value, found: &mut Vec<&'a str>) {
            match value {
                Value::Object(map) => map.iter().for_each(|(name, value)| match value {
                    Value::String(text) if name == "$ref" => found.push(text),
                    _ => walk(value, found),
                }),
                Value::Array(values) => values.iter().for_each(|value| walk(value, found)),
                _ => {}
            }
        }
        let document = document();
        let mut found = Vec::new();
        walk(&document, &mut found);
        assert!(found.len() > 20);
        for reference in found {
            let pointer = reference.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{reference}");
        }
    }
}
