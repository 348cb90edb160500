//! Templates that nobody vouches for, and what each part of the language gives.

use super::budget::{Budget, ITEM};
use super::value::Value;
use super::{Template, Variable};
use std::time::{Duration, Instant};

/// What a template writes, or what is wrong with it, for a work that small templates have plenty of.
fn render(source: &str) -> Result<String, String> {
    let messages = [vec![("role", Variable::Text("user")), ("content", Variable::Text("hé"))]];
    let variables = [
        ("messages", Variable::Maps(&messages)),
        ("tools", Variable::Json(r#"[{"name": "f\u00e9", "n": [1, 2.5, true, null], "deep": {"a": {}}}]"#)),
    ];
    let template = Template::new(source).map_err(|fault| fault.to_string())?;
    template.render(&variables, 1_000_000).map_err(|fault| fault.to_string())
}

#[track_caller]
fn gives(source: &str, text: &str) {
    assert_eq!(render(source).as_deref(), Ok(text), "{source}");
}

#[test]
fn expressions_have_pythons_values() {
    for (source, text) in [
        (
            "{{ 1 + 2 * 3 - 4 // 3 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }}",
            "6 -4 2 3.5 1024 0.5",
        ),
        ("{{ 1 ~ 'a' ~ 2.0 ~ none ~ true }} {{ 'ab' * 2 }} {{ [1] + ['b'] }}", "1a2.0NoneTrue abab [1, 'b']"),
        (
            "{{ 1 < 2 and not 2 < 1 or false }} {{ 'a' in 'cab' }} {{ 3 not in [1, 2] }} {{ 1 == 1.0 }}",
            "True True True True",
        ),
        (
            "{{ 'x' if false }}{{ 'y' if false else 'z' }} {{ (1, 2)[1] }} {{ {'a': 1}.a }} {{ {'a': 1}['a'] }}",
            "z 2 1 1",
        ),
        (
            "{{ 'héllo'[1:3] }} {{ 'abc'[::-1] }} {{ ''[::-1] }} {{ [1, 2, 3][-2:] }} {{ [1, 2, 3][5:] }} {{ 'abc'[-1] }}",
            "él cba  [2, 3] [] c",
        ),
        ("{{ 'abcdef'[4:1:-2] }} {{ [0, 1, 2, 3, 4][::2] }} {{ 'abc'[-9:9] }}", "ec [0, 2, 4] abc"),
        (
            "{{ x is defined }} {{ messages[0].x is not defined }} {{ 4 is divisibleby 2 }} {{ 1 is string or 'a' is string }}",
            "False True True True",
        ),
        ("{{ not x is defined }} {{ 3 is in [3] }} {{ 'a' 'b' }} {{ -3|abs }} {{ 1.5e }}", ""),
    ] {
        if source.contains("1.5e") {
            assert!(render(source).is_err(), "{source}");
        } else {
            gives(source, text);
        }
    }
}

#[test]
fn whitespace_is_trimmed_as_jinja_does() {
    gives("a\n  {% if true %}\n b\n  {% endif %}\nc\n", "a\n b\nc");
    gives("a \n {%- if true -%} \n b {% endif -%} \n c", "ab c");
    gives("a {% if true %} b {% endif %} c", "a  b  c");
    gives("a\n  {%+ if true %}x{% endif +%}\nb", "a\n  x\nb");
    gives("a\n  {{ 'x' }}\nb {#- gone -#} c", "a\n  x\nbc");
    gives("{# one #}\n  {# two #}\nx", "x");
    gives("{% raw %}{{ x }}{% y %}{% endraw %}{{ '}}' }}{{ '%}' }}", "{{ x }}{% y %}}}%}");
    gives("a\r\n{% set x = 1 %}\r\nb", "a\nb");
}

#[test]
fn statements_have_jinjas_scopes() {
    gives(
        "{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 3 %}{% endif %}{{ x }}",
        "213",
    );
    gives(
        "{% for a, b in [[1, 2], [3, 4]] %}{{ loop.index }}{{ a + b }}{{ ',' if not loop.last }}{% endfor %}",
        "13,27",
    );
    gives(
        "{% for i in range(9) if i is odd %}{% if i > 4 %}{% break %}{% endif %}{{ loop.length }}{{ i }}{% else %}none{% endfor %}",
        "4143",
    );
    gives("{% for i in [] %}x{% else %}none{% endfor %}{% for i in range(3) %}{% continue %}x{% endfor %}", "none");
    gives("{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t %}<{{ a }}>{% endset %}{{ t }}{{ t|length }}", "12<1>3");
    gives(
        "{% macro m(a, b='d') %}{{ a }}{{ b }}{{ g }}{% endmacro %}{% set g = 'G' %}{{ m(1) }}{{ m(b=2, a='x') }}",
        "1dGx2G",
    );
    gives(
        "{% for i in 'ab' %}{{ loop.cycle('x', 'y') }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.revindex }}{% endfor %}",
        "xb2ya1",
    );
    gives("{% set ns = namespace(n=0) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "6");
    gives(
        "{% for k, v in tools[0].items() %}{{ k }} {% endfor %}{{ tools[0]|tojson }}",
        "name n deep {\"name\": \"fé\", \"n\": [1, 2.5, true, null], \"deep\": {\"a\": {}}}",
    );
    gives("{{ {'a': [1, {}], 'b': []}|tojson(indent=2) }}", "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}");
}

#[test]
fn comparisons_make_chains() {
    gives(
        "{{ 1 < 2 < 3 }} {{ 3 > 2 > 2 }} {{ 1 < 3 > 2 }} {{ 1 == 1 in [1] }} {{ 1 < 2 == 2 }}",
        "True False True True True",
    );
    // As an operation on truth values each would be another.
    gives("{{ (3 > 2) > 2 }} {{ 3 > (2 > 1) }} {{ not 1 < 2 < 2 and 2 <= 2 <= 2 }}", "False True True");
    // What stands behind a comparison that does not hold is not looked at.
    gives("{{ 2 < 1 < 1 / 0 }}", "False");
    assert!(render("{{ 1 < 2 < 1 / 0 }}").is_err());
}

#[test]
fn tuples_are_spelled_and_compared_as_pythons() {
    gives("{{ 1, 2 }} {{ (1,) }} {{ () }} {{ (1, 'a')[1] }} {{ (1, 2, 3)[1:] }}", "(1, 2) (1,) () a (2, 3)");
    gives(
        "{{ (1, 2) == [1, 2] }} {{ (1, 2) == (1, 2) }} {{ (1,) + (2,) }} {{ 2 in (1, 2) }}",
        "False True (1, 2) True",
    );
    gives("{{ {'a': 1}.items()|list }} {{ (1, [2])|tojson }} {{ (1, 2)|list }}", "[('a', 1)] [1, [2]] [1, 2]");
    gives("{% for (a, b) in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}{% for x in 3, 4 %}{{ x }}{% endfor %}", "1234");
    gives("{% set t = 1, %}{% set a, b = (5, 6) %}{{ t }}{{ a }}{{ b }}", "(1,)56");
    assert!(render("{{ (1,) + [2] }}").expect_err("other kinds").contains("a tuple and a list"));
}

#[test]
fn macros_run_the_body_that_they_are_called_with() {
    gives("{% macro m(a) %}<{{ a }}:{{ caller() }}>{% endmacro %}{% call m(1) %}x{% endcall %}", "<1:x>");
    gives(
        "{% macro m() %}{{ caller(1, k=2) }}{{ caller(3) }}{% endmacro %}{% call(i, k='d') m() %}[{{ i }}{{ k }}]{% endcall %}",
        "[12][3d]",
    );
    // The body sees the names where it stands, and not the macro's.
    gives(
        "{% macro m(v) %}{% set w = 'in' %}{{ caller() }}{{ v }}{% endmacro %}\
         {% for v in ['out'] %}{% call m('arg') %}{{ v }}{{ w }}{{ loop.index }}{% endcall %}{% endfor %}",
        "out1arg",
    );
    // A body within a body, each for its own macro; and one that hands its caller's on.
    gives(
        "{% macro o() %}({{ caller() }}){% endmacro %}{% macro i() %}[{{ caller() }}]{% endmacro %}\
         {% call o() %}a{% call i() %}b{% endcall %}c{% endcall %}",
        "(a[b]c)",
    );
    gives(
        "{% macro i() %}[{{ caller() }}]{% endmacro %}{% macro o() %}{% call i() %}{{ caller() }}{% endcall %}{% endmacro %}\
         {% call o() %}x{% endcall %}",
        "[x]",
    );
    gives("{% macro m() %}{% if caller %}{{ caller() }}{% else %}none{% endif %}{% endmacro %}{{ m() }}", "none");
    for (source, part) in [
        ("{% macro m() %}{% endmacro %}{% call m() %}x{% endcall %}", "`m` does not take a body"),
        ("{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "`caller`"),
        ("{% call 1 %}x{% endcall %}", "a macro with its arguments"),
        ("{% call range(3) %}x{% endcall %}", "a macro of the template"),
        ("{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}x", "endcall"),
    ] {
        let fault = render(source).expect_err(source);
        assert!(fault.contains(part) && fault.contains("line 1"), "{source}: {fault}");
    }
}

#[test]
fn filters_and_methods_are_pythons() {
    for (source, text) in [
        (
            "{{ [3, 1]|join('-') }} {{ 'a,b'.split(',')|last }} {{ messages|map(attribute='role')|list }}",
            "3-1 b ['user']",
        ),
        ("{{ messages|selectattr('role', 'equalto', 'user')|list|length }} {{ [0, 1]|select|first }}", "1 1"),
        (
            "{{ [1, 2, 3, 4]|reject('odd')|join }} {{ ['a', 'B']|map('upper')|join }} {{ [1, 1, 2]|unique|list }}",
            "24 AB [1, 2]",
        ),
        (
            "{{ x|default('d') }} {{ ''|d('e', true) }} {{ ' a '|trim }} {{ 'ab'|reverse }} {{ '7'|int + 1 }}",
            "d e a ba 8",
        ),
        (
            "{{ 'a b'.title() }} {{ 'x-y-z'.rsplit('-', 1) }} {{ 'pre.x'.removeprefix('pre.') }} {{ 'aXbX'.replace('X', '', 1) }}",
            "A B ['x-y', 'z'] x abX",
        ),
        (
            "{{ 'a\\nb'|indent(2) }} {{ ', '.join(['x', 'y']) }} {{ 'aab'.count('a') }} {{ [1, 2].index(2) }}",
            "a\n  b x, y 2 1",
        ),
    ] {
        gives(source, text);
    }
}

#[test]
fn what_is_wrong_names_its_line() {
    for (source, parts) in [
        ("a\n{% if x %}", ["line 2", "endif"]),
        ("\n\n{{ 'x'.swapcase() }}", ["line 3", "swapcase"]),
        ("{{ x|sha1 }}", ["line 1", "sha1"]),
        ("{{ x is prime }}", ["line 1", "prime"]),
        ("{{ x.y.z }}", ["line 1", "undefined"]),
        ("{% include 'x' %}", ["line 1", "`include` is for templates that are several"]),
        ("{% import 'x' as y %}", ["line 1", "`import`"]),
        ("{% from 'x' import y %}", ["line 1", "`from`"]),
        ("a\n{% extends 'x' %}", ["line 2", "`extends`"]),
        ("{% block x %}{% endblock %}", ["line 1", "`block`"]),
        ("{% filter upper %}x{% endfilter %}", ["line 1", "`filter`"]),
        ("{% with x = 1 %}{% endwith %}", ["line 1", "`with`"]),
        ("{{ f(1) }}", ["line 1", "`f`"]),
        ("{{ 1 / 0 }}", ["line 1", "by 0"]),
        ("{{ 9223372036854775807 + 1 }}", ["line 1", "overflows"]),
        ("{{ 99999999999999999999 }}", ["line 1", "too great"]),
        ("{{ 1 +", ["line 1", "end"]),
        ("{{ 'x }}", ["line 1", "no end"]),
        ("{% set ns = namespace() %}{% set l = [ns] %}", ["line 1", "namespace"]),
        ("{% set ns = namespace() %}{% set ns.x = ns %}", ["line 1", "namespace"]),
    ] {
        let fault = render(source).expect_err(source);
        parts.iter().for_each(|part| assert!(fault.contains(part), "{source}: {fault}"));
    }
}

/// Each would take for ever, all memory, or the whole stack.
#[test]
fn hostile_templates_end_soon_with_an_error() {
    let deep = |open: &str, close: &str| format!("{{{{ {}1{} }}}}", open.repeat(10_000), close.repeat(10_000));
    let doubled = |step: &str| {
        format!("{{% set ns = namespace(s='ab', l=[1]) %}}{{% for i in range(99) %}}{step}{{% endfor %}}{{{{ ns.s }}}}")
    };
    let sources = [
        doubled("{% set ns.s = ns.s ~ ns.s %}"),
        doubled("{% set ns.s = ns.s + ns.s %}"),
        doubled("{% set ns.s = ns.s * 1000000 %}"),
        doubled("{% set ns.s = ns.s.replace('a', ns.s) %}"),
        doubled("{% set ns.s = ns.s|replace('', ns.s) %}"),
        doubled("{% set ns.s = [ns.s, ns.s]|join(ns.s) %}"),
        doubled("{% set ns.s = ns.s.join([ns.s, ns.s, ns.s]) %}"),
        doubled("{% set ns.s = [ns.s, ns.s]|tojson %}"),
        doubled("{% set ns.s = [ns.s, ns.s]|string %}"),
        doubled("{% set ns.s = ns.s|indent(99999999) %}"),
        doubled("{% set ns.s = ns.s|tojson(indent=99999999999) %}{% set ns.s = [ns.s]|tojson(indent=99999999999) %}"),
        doubled("{% set ns.l = [ns.l, ns.l] %}{{ ns.l == ns.l }}"),
        doubled("{% set ns.l = [ns.l, ns.l] %}{{ ns.l }}"),
        doubled("{% set ns.l = ns.l + ns.l %}"),
        doubled("{% set ns.l = {'a': ns.l, 'b': ns.l} %}{{ ns.l == ns.l }}{{ ns.l in [ns.l] }}"),
        doubled("{% set ns.s %}{{ ns.s }}{{ ns.s }}{% endset %}"),
        doubled("{% for i in range(9223372036854775807) %}{% endfor %}"),
        doubled("{{ range(-9223372036854775807, 9223372036854775807, 1)|length }}"),
        doubled(
            "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}",
        ),
        doubled("{{ ' '.split('') }}"),
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% macro m(n) %}{{ m(n) }}{{ m(n) }}{% endmacro %}{{ m(1) }}".to_owned(),
        "{% macro m() %}{% call m() %}{{ caller() }}{{ caller() }}{% endcall %}{{ caller() }}{% endmacro %}{% call m() %}{% endcall %}".to_owned(),
        "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}".to_owned() + &"{% call m() %}".repeat(90) + "x" + &"{% endcall %}".repeat(90),
        format!("{{{{ 1{} }}}}", " < 1".repeat(10_000)),
        format!("{{{{ {} }}}}", "1,".repeat(100_000)),
        deep("(", ")"),
        deep("[", "]"),
        deep("-", ""),
        deep("not ", ""),
        deep("{1:", "}"),
        format!("{{{{ 1{} }}}}", " + 1".repeat(10_000)),
        format!("{{{{ x{} }}}}", ".x".repeat(10_000)),
        format!("{{{{ x{} }}}}", "|list".repeat(10_000)),
        format!("{{{{ x{} }}}}", "[1]".repeat(10_000)),
        format!("{{{{ {} 1 }}}}", "1 if 1 else ".repeat(10_000)),
        "{% if 1 %}".repeat(10_000),
        "{% for i in [1, 2] %}".repeat(10_000),
    ];
    for source in sources {
        let begun = Instant::now();
        let outcome = render(&source);
        let (took, head) = (begun.elapsed(), &source[..source.len().min(120)]);
        assert!(outcome.is_err(), "{head}");
        assert!(took < Duration::from_secs(20), "{took:?}: {head}");
    }
    // A lot within the budget, and no error.
    gives("{{ 'abc'[::-1] }}{{ ''[::-1] }}{{ range(1000)|list|length }}", "cba1000");
}

/// Every byte and item, whoever makes it.
#[test]
fn what_is_made_is_paid_for() {
    let one = || vec![Value::Int(1)];
    assert!(Budget::new(4).text("four").is_ok());
    assert!(Budget::new(3).text("four").is_err());
    assert!(Budget::new(ITEM as u64).list(one()).is_ok());
    assert!(Budget::new(ITEM as u64 - 1).list(one()).is_err());
    assert!(Budget::new(ITEM as u64 - 1).tuple(one()).is_err());
    assert!(Budget::new(ITEM as u64 - 1).map(vec![("a".into(), Value::Int(1))]).is_err());
}

/// Any sequence of the language's words ends, with text or an error.
#[test]
fn any_words_end_with_text_or_an_error() {
    const WORDS: [&str; 69] = [
        "{{ ",
        " }}",
        "{% ",
        " %}",
        "{%- ",
        " -%}",
        "{# ",
        " #}",
        "if ",
        "elif ",
        "else ",
        "endif",
        "for x in ",
        "endfor",
        "set x = ",
        "set ns.x = ",
        "endset",
        "macro m(a, b=1)",
        "endmacro",
        "m(1)",
        "x",
        "ns",
        "messages",
        "messages[0].content",
        "tools",
        "loop",
        "loop.index",
        "namespace(x=1)",
        "range(3)",
        "'é\\n'",
        "''",
        "1",
        "0",
        "-1",
        "9223372036854775807",
        "2.5",
        "[",
        "]",
        "(",
        ")",
        "{",
        "}",
        ",",
        ":",
        ".",
        "|tojson",
        "|length",
        "|join('-')",
        "|list",
        "[::-1]",
        "[1:]",
        ".split('a')",
        ".items()",
        ".strip()",
        ".replace('a', 'bb')",
        " + ",
        " ~ ",
        " * ",
        " % ",
        " == ",
        " in ",
        " is defined",
        " and ",
        "caller()",
        " < ",
        ", 1",
        "call m(1)",
        "endcall",
        "raw %}",
    ];
    let mut state = 3u64;
    let mut random = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let runs = if std::env::var_os("KILN_TEST_LONG").is_some() { 2_000_000 } else { 20_000 };
    let mut right = 0;
    for _ in 0..runs {
        let source: String = match random(2) {
            0 => (0..random(24)).map(|_| WORDS[random(WORDS.len())]).collect(),
            // More of these mean something.
            _ => (0..1 + random(4))
                .map(|_| {
                    let value: String = (0..1 + random(5)).map(|_| WORDS[20 + random(WORDS.len() - 20)]).collect();
                    match random(3) {
                        0 => format!("{{% set x = {value} %}}"),
                        1 => format!("{{% for x in {value} %}}{{{{ x }}}}{{% endfor %}}"),
                        _ => format!("{{{{ {value} }}}}"),
                    }
                })
                .collect(),
        };
        right += usize::from(render(&source).is_ok());
    }
    println!("{right} of {runs} templates wrote a text");
    assert!(right > runs / 50, "{right} of {runs}");
}
