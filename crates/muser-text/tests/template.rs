//! Chat templates: what templates in use write, and what a hostile one tries.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use muser_text::{ChatTemplate, Error, Message, RenderOptions};
use serde_json::json;

fn message(role: &str, content: &str) -> Message {
    Message {
        role: role.into(),
        content: content.into(),
        ..Message::default()
    }
}

fn render_with(source: &str, opts: RenderOptions) -> Result<String, Error> {
    let messages = [
        message("system", " Be brief. "),
        message("user", "Hi <|eot|>"),
        message("assistant", "Hello"),
    ];
    let template = ChatTemplate::new(source, "<s>", "</s>")?.at(1_753_315_200);
    template.render(&messages, opts)
}

fn render(source: &str) -> Result<String, Error> {
    render_with(source, RenderOptions::default())
}

#[track_caller]
fn gives(source: &str, expected: &str) {
    assert_eq!(render(source).unwrap(), expected, "{source}");
}

#[test]
fn turns_and_the_start_of_an_answer() {
    let source = "{{- bos_token -}}{%- for m in messages -%}{{- '<|start|>' + m['role'] -}}\
        {%- if m['role'] == 'assistant' -%}{{- ' to=user' -}}{%- endif -%}\
        {{- '<|message|>' + m['content'] + '<|eot|>' -}}{%- endfor -%}\
        {%- if add_generation_prompt -%}{{- '<|start|>assistant' -}}{%- endif -%}";
    let turns = "<s><|start|>system<|message|> Be brief. <|eot|><|start|>user<|message|>\
        Hi <|eot|><|eot|><|start|>assistant to=user<|message|>Hello<|eot|>";
    gives(source, turns);
    let opts = RenderOptions {
        add_generation_prompt: true,
        ..RenderOptions::default()
    };
    let started = format!("{turns}<|start|>assistant");
    assert_eq!(render_with(source, opts).unwrap(), started);
}

#[test]
fn python_methods_and_filters() {
    gives(
        "{{ messages[0].content.strip() }}|{{ 'a,b'.split(',')[-1] }}",
        "Be brief.|b",
    );
    gives(
        "{{ 'xay'.replace('a', 'b') | upper }}{{ ' q '.rstrip() }}",
        "XBY q",
    );
    gives(
        "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }};{% endfor %}",
        "a=1;b=2;",
    );
    gives(
        "{{ 'abc'.startswith('ab') }} {{ none }} {{ 'b' in 'abc' }}",
        "True None True",
    );
    gives(
        "{{ {'a': 1}.get('b', 7) }} {{ messages[1:] | length }} {{ messages[::-1][0].role }}",
        "7 2 assistant",
    );
    gives(
        "{{ messages | map(attribute='role') | join('/') }}",
        "system/user/assistant",
    );
    gives(
        "{{ ['a', 'b'] }} {{ 'a' ~ 1 ~ true }} {{ 7 // 2 }} {{ 2 ** 3 }}",
        "['a', 'b'] a1True 3 8",
    );
    gives(
        "{{ messages[0].tool_calls is defined }} {{ tools is none }} {{ eos_token }}",
        "False True </s>",
    );
}

#[test]
fn namespaces_loop_controls_macros() {
    gives(
        "{% set ns = namespace(found=false, last='') %}{% for m in messages %}\
         {% if m.role == 'assistant' %}{% break %}{% endif %}\
         {% if m.role == 'system' %}{% continue %}{% endif %}\
         {% set ns.found = true %}{% set ns.last = m.role if m.role else 'x' %}{% endfor %}{{ ns.found }} {{ ns.last }}",
        "True user",
    );
    gives(
        "{% macro turn(m, tag='t') %}<{{ tag }}>{{ m.content | trim }}</{{ tag }}>{% endmacro %}\
         {{ turn(messages[2]) }}{{ turn(messages[0], tag='s') }}",
        "<t>Hello</t><s>Be brief.</s>",
    );
    gives(
        "{% for n in [1, [2, [3]]] recursive %}{% if n is iterable %}({{ loop(n) }}){% else %}{{ n }}{% endif %}{% endfor %}",
        "1(2(3))",
    );
    gives(
        "{% macro wrap() %}[{{ caller() }}]{% endmacro %}{% call wrap() %}x{% endcall %}\
         {% set y %}{{ 1 }}2{% endset %}{{ y }}{% for m in messages %}{{ loop.index0 }}{{ loop.last }},{% endfor %}",
        "[x]120False,1False,2True,",
    );
    gives(
        "{% set a, b = 1, [2] %}{% set l = [a] + b * 2 %}{{ l }}{{ l[1:] }}",
        "[1, 2, 2][2, 2]",
    );
}

#[test]
fn blocks_are_trimmed_as_hugging_face_does() {
    gives("a\n  {% if true %}\nb\n  {% endif %}\nc\n", "a\nb\nc");
}

#[test]
fn json_is_pythons() {
    let tools = json!([{"type": "function", "function": {"name": "é<x>'", "args": {}, "list": [1, 2.5, null, true]}}]);
    let with = |source: &str| {
        let opts = RenderOptions {
            tools: Some(tools.clone()),
            ..RenderOptions::default()
        };
        render_with(source, opts).unwrap()
    };
    assert_eq!(
        with("{{ tools | tojson }}"),
        r#"[{"type": "function", "function": {"name": "é<x>'", "args": {}, "list": [1, 2.5, null, true]}}]"#
    );
    assert_eq!(
        with("{{ tools[0].function | tojson(indent=2) }}"),
        "{\n  \"name\": \"é<x>'\",\n  \"args\": {},\n  \"list\": [\n    1,\n    2.5,\n    null,\n    true\n  ]\n}"
    );
    assert_eq!(
        with(
            "{{ tools[0].function | tojson(ensure_ascii=true, sort_keys=true, separators=[',', ':']) }}"
        ),
        r#"{"args":{},"list":[1,2.5,null,true],"name":"\u00e9<x>'"}"#
    );
    assert_eq!(
        with("{{ [] | tojson(indent=2) }} {{ '😀' | tojson(ensure_ascii=true) }}"),
        r#"[] "\ud83d\ude00""#
    );
    assert!(render("{{ missing | tojson }}").is_err());
    assert!(render("{{ 1 | tojson(indent=100000000000) }}").is_err());
}

#[test]
fn dates_come_from_the_given_clock() {
    gives(
        "{{ strftime_now('%d %b %Y %H:%M') }} {{ strftime_now('%-d %B') }}",
        "24 Jul 2025 00:00 24 July",
    );
    assert!(render("{{ strftime_now('%') }}").is_err());
    assert!(render(&format!("{{{{ strftime_now('{}') }}}}", "%Y".repeat(1000))).is_err());
}

#[test]
fn optional_fields_and_extra_variables() {
    let message = Message {
        role: "assistant".into(),
        reasoning_content: Some("hm".into()),
        tool_calls: Some(json!([{"function": {"name": "f"}}])),
        ..Message::default()
    };
    let template = ChatTemplate::new(
        "{{ messages[0].reasoning_content }} {{ messages[0].tool_calls[0].function.name }} {{ think }} {{ bos_token }}",
        "<s>",
        "",
    );
    let extra = json!({"think": "low", "bos_token": "<b>"});
    let opts = RenderOptions {
        extra: extra.as_object().unwrap().clone(),
        ..RenderOptions::default()
    };
    assert_eq!(
        template.unwrap().render(&[message], opts).unwrap(),
        "hm f low <b>"
    );
    let parsed: Message = serde_json::from_value(json!({"role": "user"})).unwrap();
    assert_eq!(parsed, self::message("user", ""));
}

#[test]
fn errors_carry_the_line() {
    let error = ChatTemplate::new("a\n{{ 1 +", "", "").unwrap_err();
    assert!(
        matches!(&error, Error::Template { line: Some(2), .. }),
        "{error:?}"
    );
    let error = render("a\nb\n{{ messages.nope.nope }}").unwrap_err();
    assert!(
        matches!(&error, Error::Template { line: Some(3), .. }),
        "{error:?}"
    );
    let error = render("a\n{{ frobnicate() }}").unwrap_err();
    assert!(
        error.to_string().contains("line 2") && error.to_string().contains("frobnicate"),
        "{error}"
    );
    let error = render("\n\n{{ raise_exception('roles must alternate') }}").unwrap_err();
    let raised = Error::TemplateRaised {
        line: Some(3),
        message: "roles must alternate".into(),
    };
    assert_eq!(error, raised);
    let error =
        render("{% macro m() %}\n{{ raise_exception('no') }}{% endmacro %}{{ m() }}").unwrap_err();
    assert!(
        matches!(&error, Error::TemplateRaised { message, .. } if message == "no"),
        "{error:?}"
    );
}

/// Each would hang, fill the memory or overflow the stack without its bound.
#[test]
fn hostile_templates_are_stopped() {
    let repeat = |count: usize, text: &str| text.repeat(count);
    let nested = |tail: &str| {
        format!(
            "{{% set ns = namespace(x=[]) %}}{{% for i in range(20000) %}}{{% set ns.x = {}ns.x{} %}}{{% endfor %}}{tail}",
            repeat(40, "["),
            repeat(40, "]")
        )
    };
    let shared = |tail: &str| {
        format!(
            "{{% set x = ['ab'] %}}{}{tail}",
            repeat(60, "{% set x = [x, x] %}")
        )
    };
    let looped = |step: &str| {
        format!(
            "{{% set ns = namespace(x=[1, 2]) %}}{{% for i in range(40000) %}}{{% set ns.x = {step} %}}{{% endfor %}}{{{{ ns.x | length }}}}"
        )
    };
    let compared = |expression: &str| {
        let grow = |x: &str| {
            format!(
                "{{% set {x} = [1] %}}{}",
                repeat(14, &format!("{{% set {x} = [{x}, {x}] %}}"))
            )
        };
        format!(
            "{}{}{{% for j in range(999) %}}{{% for i in range(999) %}}{{% set z = {expression} %}}{{% endfor %}}{{% endfor %}}",
            grow("x"),
            grow("y")
        )
    };
    let cases = [
        (
            "{% for i in range(40000) %}{% for j in range(40000) %}{% endfor %}{% endfor %}".into(),
            "steps",
        ),
        (
            "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".into(),
            "recursion",
        ),
        (
            "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}".into(),
            "recursion",
        ),
        (
            format!(
                "{{% set x = 'aaaaaaaa' %}}{}",
                repeat(60, "{% set x = x ~ x %}")
            ),
            "steps",
        ),
        (
            format!(
                "{{% set x = 'aaaaaaaa' %}}{}",
                repeat(60, "{% set x %}{{ x }}{{ x }}{% endset %}")
            ),
            "steps",
        ),
        ("{{ 'a' * 99999999 }}".into(), "steps"),
        (
            "{{ ('a' * 10000) | replace('a', 'a' * 10000) }}".into(),
            "steps",
        ),
        ("{{ '%99999999d' | format(3) }}".into(), "steps"),
        ("{{ range(10 ** 15) | list }}".into(), "range"),
        ("{{ [1] | batch(10 ** 10, 1) }}".into(), "steps"),
        ("{{ 'a\nb' | indent(10 ** 11) }}".into(), "steps"),
        (
            "{% for i in range(1000) %}".to_owned() + &repeat(8000, "text ") + "{% endfor %}",
            "steps",
        ),
        (nested(""), "levels of nesting"),
        (nested("{{ ns.x }}"), "levels of nesting"),
        (shared(""), "bytes in a value"),
        (shared("{{ x }}"), "bytes in a value"),
        (shared("{{ x | tojson }}"), "bytes in a value"),
        (shared("{{ (x ~ 'a') | length }}"), "bytes in a value"),
        (
            format!(
                "{{% set x = [1] %}}{}",
                repeat(60, "{% set x = dict(a=x, b=x) %}")
            ),
            "bytes in a value",
        ),
        (
            format!(
                "{{% set x = ['a' * 1000] * 100 %}}{}",
                repeat(9, "{% set x = x + x %}")
            ),
            "bytes in a value",
        ),
        (
            format!(
                "{{% set x = [1] %}}{}",
                repeat(60, "{% set x = x | zip(x) | list %}")
            ),
            "bytes in a value",
        ),
        (
            "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}".into(),
            "namespace",
        ),
        (
            "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns ~ '' }}".into(),
            "namespace",
        ),
        (
            "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{{ b ~ '' }}"
                .into(),
            "namespace",
        ),
        (compared("x == y"), "steps"),
        (compared("x < y"), "steps"),
        (compared("x in [y]"), "steps"),
        (compared("1 < x == y"), "steps"),
        (compared("x is eq(y)"), "steps"),
        (compared("[[x]] | selectattr(0, 'eq', y) | list"), "steps"),
        (compared("[x].count(y)"), "steps"),
        (compared("loop.changed(x) or loop.changed(y)"), "steps"),
        (compared("[x] | min"), "steps"),
        ("{{ {[1]: 2} }}".into(), "as a key"),
        (
            "{{ 1 | default(*[2]) | upper(*[]) }}".into(),
            "not supported",
        ),
        (
            format!(
                "{{% set ns = namespace() %}}{}",
                (0..999)
                    .map(|i| format!("{{% set ns.a{i} = range(9999) %}}"))
                    .collect::<String>()
            ),
            "bytes in a value",
        ),
        (
            "{% for i in [1, 2] %}{% set x = [loop] %}{% endfor %}".into(),
            "loop",
        ),
        (looped("ns.x[0:]"), "steps"),
        (looped("ns.x * 1"), "steps"),
        (looped("ns.x | reverse"), "steps"),
        (looped("ns.x + [1]"), "steps"),
        (
            format!("{{{{ 1{} }}}}", repeat(100_000, "+1")),
            "tokens in a tag",
        ),
        (
            format!("{{{{ {}x }}}}", repeat(60_000, "not ")),
            "tokens in a tag",
        ),
        (
            format!("{{{{ 1{} }}}}", repeat(100_000, "~1")),
            "tokens in a tag",
        ),
        (repeat(10_000, "{% if x %}"), "recursion"),
        (repeat(300_000, "a"), "bytes of source"),
    ];
    for (source, limit) in cases {
        let error = render(&source).expect_err(&source[..source.len().min(200)]);
        assert!(
            error.to_string().contains(limit),
            "expected {limit}: {error}"
        );
    }
}

/// At the bounds, but within them: no error, and no stack overflow.
#[test]
fn long_chains_within_the_bounds() {
    gives(&format!("{{{{ 1{} }}}}", "+1".repeat(2000)), "2001");
    gives(&format!("{{{{ {}x }}}}", "not ".repeat(140)), "False");
    gives(&format!("{{{{ x{} }}}}", "|default('d')".repeat(700)), "d");
    gives(
        &format!(
            "{{% if x %}}{}{{% else %}}z{{% endif %}}",
            "{% elif x %}".repeat(20_000)
        ),
        "z",
    );
}

#[test]
fn long_conversations_fit() {
    let source = "{% for m in messages %}{% if m.role == 'user' and loop.index0 % 2 == 0 %}\
        {{ '<|start|>' ~ m.role ~ '<|message|>' ~ m.content.strip() ~ '<|eot|>' }}{% else %}\
        {{ '<|start|>' + m['role'] + '<|message|>' + m['content'].split('</think>')[-1] | trim }}{% endif %}{% endfor %}";
    let template = ChatTemplate::new(source, "", "").unwrap();
    let many: Vec<_> = (0..5000)
        .map(|i| message("user", &format!("message {i}")))
        .collect();
    let text = template.render(&many, RenderOptions::default()).unwrap();
    assert_eq!(text.matches("message 4999").count(), 1);
    let long = [message("user", &"long text ".repeat(500_000))];
    assert!(
        template
            .render(&long, RenderOptions::default())
            .unwrap()
            .len()
            > 4_999_000
    );
}
