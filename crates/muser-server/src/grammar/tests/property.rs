//! Tests random answers under random JSON schemas with another implementation of JSON
//! schema as the judge.

use super::*;

/// Generates a random JSON schema of keywords that constrained decoding can enforce.
fn schema(random: &mut Random, depth: usize) -> Value {
    let kinds = if depth == 0 { 7 } else { 12 };
    match random.below(kinds) {
        0 => {
            let low = random.below(50) as i64 - 25;
            json!({"type": "integer", "minimum": low, "maximum": low + random.below(3000) as i64})
        }
        1 => {
            let low = random.below(1000) as f64 / 8.0 - 60.0;
            json!({"type": "number", "minimum": low, "exclusiveMaximum": low + 1.0 + random.below(90) as f64 / 16.0})
        }
        2 => {
            json!({"type": "string", "minLength": random.below(3), "maxLength": 3 + random.below(9)})
        }
        3 => {
            let patterns = [
                "^[ab]+$",
                "x|y{2}",
                "^\"",
                "\\\\$",
                "^a.c$",
                "^[^a-z]{1,3}$",
                "\\n",
            ];
            json!({"type": "string", "pattern": *random.one(&patterns), "maxLength": 20})
        }
        4 => json!({"enum": [random.below(9), "a\"b", null, {"k": [1, "x"]}, 1.5]}),
        5 => json!({"type": ["boolean", "null"]}),
        6 => json!({"$ref": "#/$defs/leaf"}),
        7 => {
            let least = random.below(3);
            json!({"type": "array", "items": schema(random, depth - 1), "minItems": least, "maxItems": least + random.below(4)})
        }
        8 => json!({"anyOf": [schema(random, depth - 1), schema(random, depth - 1)]}),
        9 => json!({"allOf": [{"$ref": "#/$defs/base"}, members(random, depth)]}),
        10 => json!({"$ref": "#/$defs/tree"}),
        _ => members(random, depth),
    }
}

fn members(random: &mut Random, depth: usize) -> Value {
    let mut properties = serde_json::Map::new();
    let mut required = Vec::new();
    for i in 0..random.below(5) {
        let name = random
            .one(&["a", "b\"", "c d", "\u{e9}", "\\", "base"])
            .to_string();
        properties.insert(name.clone(), schema(random, depth.saturating_sub(1)));
        if random.below(2) == 0 && i < 3 && !required.contains(&name) {
            required.push(name);
        }
    }
    let mut made = json!({"type": "object", "properties": properties, "required": required});
    match random.below(4) {
        0 => made["additionalProperties"] = json!(false),
        1 => made["additionalProperties"] = schema(random, 0),
        _ => {}
    }
    made
}

fn rooted(mut schema: Value) -> Value {
    schema["$defs"] = json!({
        "leaf": {"type": "string", "enum": ["l", "m"]},
        "base": {"type": "object", "properties": {"base": {"type": "integer", "maximum": 5}}},
        "tree": {"type": "object", "properties": {"left": {"$ref": "#/$defs/tree"}, "v": {"type": "null"}}, "required": ["v"]}
    });
    schema
}

#[test]
fn what_is_accepted_is_obeyed() {
    let g = grammars();
    let (mut written, mut open) = (0, 0);
    for seed in 0..250 {
        let mut random = Random(seed);
        let schema = rooted(schema(&mut random, 3));
        let Ok(lark) = lark(&g, &schema) else {
            continue;
        };
        let judge = jsonschema::validator_for(&schema).unwrap();
        for _ in 0..3 {
            let Some(tokens) = write(&g, &lark, &mut random) else {
                open += 1;
                continue;
            };
            let answer = text(&tokens);
            let json = answer.trim_start_matches(" to=user<|message|>");
            let value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {json}"));
            assert!(judge.is_valid(&value), "seed {seed}: {json} under {schema}");
            written += 1;
        }
    }
    assert!(written > 500 && open < 20, "{written} written, {open} open");
}

#[test]
fn arguments_fit_the_tools_schema() {
    let mut written = 0;
    for seed in 0..120 {
        let mut random = Random(seed + 1000);
        let mut parameters = rooted(members(&mut random, 3));
        let properties = parameters["properties"].as_object_mut().unwrap();
        properties.retain(|name, _| !name.contains('"'));
        let kept: Vec<String> = properties.keys().cloned().collect();
        let required = parameters["required"].as_array_mut().unwrap();
        required.retain(|n| kept.iter().any(|k| n == k));
        let tool = tool(parameters.clone());
        if grammars()
            .calls(&[(PARAM.to_owned(), &tool)], false, false)
            .is_ok()
        {
            written += check_calls(&parameters, 2).len();
        }
    }
    assert!(written > 150, "{written}");
}
