package limitsyaml

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/test/corpus"
	"github.com/headway-go/headway/throttle/policy"
)

// "every fault is listed with its line, none is guessed". A row is a whole file and all that is wrong with it; each line of want
// has the name of the file before it.
func TestParseFaults(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ text, want string }{
		// The file as a whole.
		"empty":              {"", `1:1: the file is empty; write limits: {} if no rules are meant`},
		"only a comment":     {"# nothing\n", `1:1: the file is empty; write limits: {} if no rules are meant`},
		"a list":             {"- a\n", `1:1: the file is a list; write its fields, unmatched or limits`},
		"a text":             {"\nlimits\n", `2:1: the file is the text "limits"; write its fields, unmatched or limits`},
		"a null":             {"null\n", `1:1: the file is null; write its fields, unmatched or limits`},
		"two documents":      {"limits: {}\n---\nlimits: {}\n", `2:1: a second document begins here; write one, and no --- or ... after it`},
		"a broken second":    {"limit: {}\n---\na: [\n", "1:1: limit: limit is not a field of the file; did you mean limits?\n4:1: this is not YAML: did not find expected node content while parsing a flow node; check the indentation, quotes and brackets up to here"},
		"unmatched":          {"unmatched: denny\n", `1:12: unmatched: unmatched is "denny"; did you mean deny?`},
		"unmatched is empty": {"unmatched:\nlimits: {}\n", `1:1: unmatched: unmatched is empty; write deny, fail or allow`},
		"unknown field":      {"unmatched: deny\nlimit: {}\n", `2:1: limit: limit is not a field of the file; did you mean limits?`},
		"duplicate field":    {"limits: {}\nlimits: {}\n", `2:1: limits: limits is there already, on line 1; keep one of the two`},
		"limits is empty":    {"limits:\n", `1:1: limits: limits is empty; write names under it, or {} for none`},

		// Not YAML, or more of YAML than is read.
		"star without quotes": {"limits:\n  *:\n    rules: []\n", `2:4: this is not YAML: did not find expected alphabetic or numeric character while scanning an alias; put text that begins with * in quotes, such as "*"`},
		"tab":                 {"limits:\n\ta: {}\n", `2:1: this is not YAML: found character that cannot start any token while scanning for the next token; indent with spaces, not tabs`},
		"at sign":             {"limits: @a\n", `1:9: this is not YAML: found character that cannot start any token while scanning for the next token; put text that begins with this character in quotes`},
		"open bracket":        {"limits:\n  a: {rules: [\n\n", `4:1: this is not YAML: did not find expected node content while parsing a flow node; check the indentation, quotes and brackets up to here`},
		"open at the end":     {"limits: {}\né: [", `2:5: this is not YAML: did not find expected node content while parsing a flow node; check the indentation, quotes and brackets up to here`},
		"colon":               {"limits:\n  a: b: {}\n", `2:7: this is not YAML: mapping values are not allowed in this context; check the indentation, and put text that holds ": " in quotes`},
		"open quote":          {"limits:\n  \"a: {}\n", `3:1: this is not YAML: found unexpected end of stream while scanning a quoted scalar begun on line 2; check the indentation, quotes and brackets up to here`},
		"deep nesting":        {"limits: " + strings.Repeat("[", 65), `1:73: this is not YAML: exceeded max depth of 64 while increasing flow level; nothing needs so much nesting, close a bracket`},
		"YAML of tomorrow":    {"%YAML 2.0\n---\nlimits: {}\n", `1:1: this is not YAML: found incompatible YAML document; remove the line`},
		"alias of nothing":    {"limits: *x\n", `1:9: this is not YAML: unknown anchor 'x' referenced; anchors and aliases are not read, write the value out`},
		"anchor and alias": {"limits:\n  a: &x {}\n  b: *x\n",
			"2:6: limits.a: a has an anchor, and anchors are not read; remove &x\n3:6: limits.b: b is an alias, and aliases are not read; write its value out"},
		"billion laughs": {"limits:\n  a: &a {scopes: {x: {}}}\n  b: &b {scopes: {x: *a, y: *a}}\n  c: {scopes: {x: *b, y: *b}}\n",
			"2:6: limits.a: a has an anchor, and anchors are not read; remove &a\n" +
				"3:6: limits.b: b has an anchor, and anchors are not read; remove &b\n" +
				"4:19: limits.c.scopes.x: x is an alias, and aliases are not read; write its value out\n" +
				"4:26: limits.c.scopes.y: y is an alias, and aliases are not read; write its value out"},
		"anchored key": {"limits: {&x a: {}, *x : {}}\n",
			"1:10: limits: a has an anchor, and anchors are not read; remove &x\n1:20: limits: *x is an alias, and aliases are not read; write the name out"},
		"merge key":      {"limits: {a: {<<: {rules: []}}}\n", `1:14: limits.a: << is a merge key, and merge keys are not read; write the fields out`},
		"tagged key":     {"limits: {!!str a: {}}\n", `1:10: limits: a has a tag, and tags are not read; remove !!str`},
		"bare tag":       {"unmatched: ! deny\n", `1:12: unmatched: unmatched has a tag, and tags are not read; remove !`},
		"tag that rings": {"limits: !%07 {}\n", `1:9: limits: limits has a tag, and tags are not read; remove "!\a"`},
		"mapping key":    {"limits:\n  ? {a: b}\n  : {}\n", `2:5: limits: a mapping stands where a name has to; write a name`},

		// Characters.
		"not UTF-8":          {"limits: {}\n# caf\xe9\n", `2:6: byte 0xe9 is not UTF-8; save the file as UTF-8`},
		"NUL":                {"limits: {}\x00\n", `1:11: the character U+0000 may not stand in the file; remove it, or write it as an escape in double quotes`},
		"one fault a line":   {"é\x00\x01\n\x7f\nlimits: {}\n", "1:2: the character U+0000 may not stand in the file; remove it, or write it as an escape in double quotes\n2:1: the character U+007F may not stand in the file; remove it, or write it as an escape in double quotes"},
		"a line end of YAML": {"# one\u2028\nlimits: {}\n", `1:6: the character U+2028 may not stand in the file; remove it, or write it as an escape in double quotes`},
		"carriage return":    {"limits: {}\runmatched: x\n", `1:11: a carriage return stands alone; end lines with a line feed`},
		"byte order mark":    {"\ufefflimit: {}\n", `1:1: limit: limit is not a field of the file; did you mean limits?`},
		"a second mark":      {"\ufeff\ufefflimits: {}\n", `1:1: the character U+FEFF may not stand in the file; remove it, or write it as an escape in double quotes`},
		"wide characters":    {"limits: {日本é: {rule: []}}\n", `1:16: limits."日本é".rule: rule is not a field of a scope; did you mean rules?`},
		"Windows line ends":  {"limits:\r\n  a:\r\n    rule: []\r\n", `3:5: limits.a.rule: rule is not a field of a scope; did you mean rules?`},

		// Names and levels of scopes.
		"name is empty":    {"limits: {\"\": {}}\n", `1:10: limits."": name is empty; write 1 to 128 bytes`},
		"name holds slash": {"limits:\n  a/b: {}\n", `2:3: limits."a/b": name holds a '/', which divides names; write another character`},
		"name twice":       {"limits:\n  404: {}\n  \"404\": {}\n", `3:3: limits.404: 404 is there already, on line 2; keep one of the two`},
		"level nine":       {nested(9, "{}"), `1:122: limits.n1.scopes.n2.scopes.n3.scopes.n4.scopes.n5.scopes.n6.scopes.n7.scopes.n8.scopes.n9: n9 is at level 9; the most is 8`},

		// Nodes.
		"node is empty":   {"limits:\n  a:\n  b: {}\n", `2:3: limits.a: a is empty; write rules and scopes under it, or {} for none`},
		"node is a list":  {"limits: {a: []}\n", `1:13: limits.a: a is a list; write rules and scopes under it, or {} for none`},
		"scope in a node": {"limits: {pay: {acme: {}}}\n", `1:16: limits.pay.acme: acme is not a field of a scope; write rules or scopes, and names of the next level under scopes`},
		"rules is empty":  {"limits:\n  a:\n    rules:\n", `3:5: limits.a.rules: rules is empty; write a list under it, one - {name: account, ...} a rule, or [] for none`},
		"rules is one":    {"limits: {a: {rules: {name: x}}}\n", `1:21: limits.a.rules: rules is a mapping; write a list under it, one - {name: account, ...} a rule, or [] for none`},
		"rule is a text":  {"limits: {a: {rules: [account]}}\n", `1:22: limits.a.rules[0]: the rule is the text "account"; write its fields, such as {name: account, ...}`},
		"rule is empty":   {"limits:\n  a:\n    rules:\n      -\n", `4:8: limits.a.rules[0]: the rule is empty; write its fields, such as {name: account, ...}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkFaults(t, row.text, row.want)
		})
	}
}

// Faults of rules: a row is the fields of one rule, which begins at 1:22.
func TestParseRuleFaults(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct{ rule, want string }{
		"nothing": {`{}`, "1:22: limits.a.rules[0]: name is missing; every rule needs one, such as account\n" +
			"1:22: limits.a.rules[0]: algorithm is missing; write token-bucket, sliding-window, fixed-window, concurrency or calendar\n" +
			"1:22: limits.a.rules[0]: limit is missing; write a whole number, or unlimited: true to remove an inherited rule"},
		"no per":       {`{name: r, algorithm: fixed-window, limit: 1}`, `1:22: limits.a.rules[0]: per is missing; write the length of the window, such as 1s`},
		"unknown":      {`{name: r, algorithm: concurrency, limit: 1, colour: red}`, `1:66: limits.a.rules[0].colour: colour is not a field of a rule; write name, algorithm, limit, per, opens_on_use, burst, lease, on_redis_error, margin, max_wait, resets, active, timezone, rollover, spread, shadow, unit, cap, vendor or unlimited`},
		"misspelt":     {`{name: r, algorithms: concurrency, limits: 1, max-wait: 1s}`, "1:32: limits.a.rules[0].algorithms: algorithms is not a field of a rule; did you mean algorithm?\n1:57: limits.a.rules[0].limits: limits is not a field of a rule; did you mean limit?\n1:68: limits.a.rules[0].max-wait: max-wait is not a field of a rule; did you mean max_wait?"},
		"duplicate":    {`{name: r, algorithm: concurrency, limit: 1, limit: 2}`, `1:66: limits.a.rules[0].limit: limit is there already, on line 1; keep one of the two`},
		"unit of runs": {`{name: r, algorithm: concurrency, limit: 1, unit: tokens}`, `1:72: limits.a.rules[0].unit: unit does not go with concurrency; remove it`},
		"no unit":      {`{name: r, algorithm: calendar, limit: 1, resets: "@daily", unit: ""}`, `1:87: limits.a.rules[0].unit: unit is empty; write a name such as tokens`},
		"bad unit":     {`{name: r, algorithm: calendar, limit: 1, resets: "@daily", unit: Tokens!}`, `1:87: limits.a.rules[0].unit: unit is no unit's name; write lower-case letters, digits, '-' and '_'`},
		"odd unit":     {`{name: r, algorithm: calendar, limit: 1, resets: "@daily", unit: 7}`, `1:87: limits.a.rules[0].unit: unit is the number 7; write the name of a unit, such as tokens`},
		"calendar": {`{name: r, algorithm: calendar, limit: 1, resets: x, timezone: y}`,
			"1:71: limits.a.rules[0].resets: resets cannot be read: cron \"x\": has 1 of 5 fields: minute, hour, day of month, month, day of week; write five fields, such as \"0 6 * * 1-5\", or @daily\n" +
				"1:84: limits.a.rules[0].timezone: timezone cannot be read: time zone \"y\" is unknown; write a name of the IANA list, such as UTC or America/Los_Angeles"},
		"calendar, company": {`{name: r, algorithm: calendar, limit: 1, resets: "@daily", per: 1s, burst: 2, lease: 5s}`,
			"1:86: limits.a.rules[0].per: per does not go with calendar; remove it\n" +
				"1:97: limits.a.rules[0].burst: burst does not go with calendar; remove it\n" +
				"1:107: limits.a.rules[0].lease: lease does not go with calendar; remove it"},
		"company of a calendar": {`{name: r, algorithm: concurrency, limit: 1, resets: "@daily", timezone: UTC, rollover: 1, spread: true}`,
			"1:74: limits.a.rules[0].resets: resets does not go with concurrency; remove it\n" +
				"1:94: limits.a.rules[0].timezone: timezone does not go with concurrency that always holds; remove it\n" +
				"1:109: limits.a.rules[0].rollover: rollover does not go with concurrency; remove it\n" +
				"1:120: limits.a.rules[0].spread: spread does not go with concurrency; remove it"},
		"active": {`{name: r, algorithm: concurrency, limit: 1, active: "* 8-19 * * 1-5", timezone: x}`,
			"1:102: limits.a.rules[0].timezone: timezone cannot be read: time zone \"x\" is unknown; write a name of the IANA list, such as UTC or America/Los_Angeles"},
		"active always": {`{name: r, algorithm: concurrency, limit: 1, active: "* * * * *"}`,
			"1:74: limits.a.rules[0].active: active cannot be heeded: cron \"* * * * *\": matches every minute; remove it"},
		"active daily": {`{name: r, algorithm: concurrency, limit: 1, active: "@daily"}`,
			"1:74: limits.a.rules[0].active: active cannot be heeded: cron \"@daily\": stands for single moments; write five fields, such as \"* 8-19 * * 1-5\""},
		"active, a number": {`{name: r, algorithm: concurrency, limit: 1, active: 8}`,
			"1:74: limits.a.rules[0].active: active is the number 8; write a cron expression, such as \"* 8-19 * * 1-5\""},
		"resets a number":  {`{name: r, algorithm: calendar, limit: 1, resets: 5}`, "1:71: limits.a.rules[0].resets: resets is the number 5; write a cron expression, such as \"0 0 * * *\""},
		"timezone local":   {`{name: r, algorithm: calendar, limit: 1, resets: "@daily", timezone: Local}`, "1:91: limits.a.rules[0].timezone: timezone cannot be read: time zone \"Local\" differs from one machine to the next; write a name of the IANA list, such as UTC or America/Los_Angeles"},
		"timezone empty":   {`{name: r, algorithm: calendar, limit: 1, resets: "@daily", timezone: ""}`, "1:91: limits.a.rules[0].timezone: timezone is empty; write UTC or America/Los_Angeles, or remove it for UTC"},
		"rollover below":   {`{name: r, algorithm: calendar, limit: 1, resets: "@daily", rollover: -1}`, "1:91: limits.a.rules[0].rollover: rollover is -1; the least is 0"},
		"calendar, margin": {`{name: r, algorithm: calendar, limit: 1, resets: "@daily", margin: 30s}`, "1:89: limits.a.rules[0].margin: margin is 30s; with calendar it must be less than 30s, half of the shortest period that cron has"},
		"two at once":      {`{name: "", algorithm: x, limit: -1}`, "1:29: limits.a.rules[0].name: name is empty; write 1 to 128 bytes\n1:44: limits.a.rules[0].algorithm: algorithm is \"x\"; write token-bucket, sliding-window, fixed-window, concurrency or calendar\n1:54: limits.a.rules[0].limit: limit is -1; the least is 0"},
		"anchored value":   {`{name: &n r, algorithm: concurrency, limit: 1}`, `1:29: limits.a.rules[0].name: name has an anchor, and anchors are not read; remove &n`},

		"name is a number": {`{name: 12, algorithm: concurrency, limit: 1}`, `1:29: limits.a.rules[0].name: name is the number 12; write "12" in quotes if that text is meant`},
		"name is a date":   {`{name: 2026-01-02, algorithm: concurrency, limit: 1}`, `1:29: limits.a.rules[0].name: name is the date 2026-01-02; write "2026-01-02" in quotes if that text is meant`},
		"name is a list":   {`{name: [r], algorithm: concurrency, limit: 1}`, `1:29: limits.a.rules[0].name: name is a list; write a name, such as account`},

		"algorithm near":  {`{name: r, algorithm: token_bucket, limit: 1, per: 1s}`, `1:43: limits.a.rules[0].algorithm: algorithm is "token_bucket"; did you mean token-bucket?`},
		"algorithm empty": {`{name: r, algorithm: , limit: 1, per: 1s}`, `1:32: limits.a.rules[0].algorithm: algorithm is empty; write token-bucket, sliding-window, fixed-window, concurrency or calendar`},

		"limit in quotes":   {`{name: r, algorithm: concurrency, limit: "10"}`, `1:63: limits.a.rules[0].limit: limit is the text "10"; write 10 without quotes`},
		"limit is text":     {`{name: r, algorithm: concurrency, limit: ten}`, `1:63: limits.a.rules[0].limit: limit is the text "ten"; write a whole number in plain digits, such as 100`},
		"limit 1e3":         {`{name: r, algorithm: concurrency, limit: 1e3}`, `1:63: limits.a.rules[0].limit: limit is the number 1e3; write a whole number in plain digits, such as 100`},
		"limit 010":         {`{name: r, algorithm: concurrency, limit: 010}`, `1:63: limits.a.rules[0].limit: limit is the number 010; write a whole number in plain digits, such as 100`},
		"limit 0x10":        {`{name: r, algorithm: concurrency, limit: 0x10}`, `1:63: limits.a.rules[0].limit: limit is the number 0x10; write a whole number in plain digits, such as 100`},
		"limit -0":          {`{name: r, algorithm: concurrency, limit: -0}`, `1:63: limits.a.rules[0].limit: limit is the number -0; write a whole number in plain digits, such as 100`},
		"limit is a bool":   {`{name: r, algorithm: concurrency, limit: true}`, `1:63: limits.a.rules[0].limit: limit is true; write a whole number in plain digits, such as 100`},
		"limit negative":    {`{name: r, algorithm: concurrency, limit: -1}`, `1:63: limits.a.rules[0].limit: limit is -1; the least is 0`},
		"limit too large":   {`{name: r, algorithm: concurrency, limit: 1000000000001}`, `1:63: limits.a.rules[0].limit: limit is 1000000000001; the most is 1000000000000`},
		"limit without end": {`{name: r, algorithm: concurrency, limit: ` + strings.Repeat("1", 400) + `}`, `1:63: limits.a.rules[0].limit: limit is ` + strings.Repeat("1", 64) + `…; the most is 1000000000000`},

		"burst zero":      {`{name: r, algorithm: token-bucket, limit: 1, per: 1s, burst: 0}`, `1:83: limits.a.rules[0].burst: burst is 0; the least is 1`},
		"burst of window": {`{name: r, algorithm: sliding-window, limit: 1, per: 1s, burst: 1}`, `1:85: limits.a.rules[0].burst: burst does not go with sliding-window; remove it`},
		"bucket too slow": {`{name: r, algorithm: token-bucket, limit: 1, per: 366d, burst: 143}`, `1:85: limits.a.rules[0].burst: burst is 143, and burst x per / limit is longer than 142 years; lower burst or per, or raise limit`},

		"per of places": {`{name: r, algorithm: concurrency, limit: 1, per: 1s}`, `1:71: limits.a.rules[0].per: per does not go with concurrency; remove it`},
		"per no unit":   {`{name: r, algorithm: fixed-window, limit: 1, per: 60}`, `1:72: limits.a.rules[0].per: per is the number 60, which has no unit; write 60s if seconds are meant`},
		"per zero":      {`{name: r, algorithm: fixed-window, limit: 1, per: 0s}`, `1:72: limits.a.rules[0].per: per is 0s; the least is 1us`},
		"per 999ns":     {`{name: r, algorithm: fixed-window, limit: 1, per: 999ns}`, `1:72: limits.a.rules[0].per: per is 999ns; the least is 1us`},
		"per 1500ns":    {`{name: r, algorithm: fixed-window, limit: 1, per: 1500ns}`, `1:72: limits.a.rules[0].per: per is 1500ns, and limits count whole microseconds; write 1us or 2us`},
		"per too long":  {`{name: r, algorithm: fixed-window, limit: 1, per: 367d}`, `1:72: limits.a.rules[0].per: per is 367d; the most is 366d`},
		"per far too long": {`{name: r, algorithm: fixed-window, limit: 1, per: 99999999999999999999d}`,
			`1:72: limits.a.rules[0].per: per is 99999999999999999999d; the most is 366d`},
		"per half a day": {`{name: r, algorithm: fixed-window, limit: 1, per: 0.5d}`, `1:72: limits.a.rules[0].per: per is the text "0.5d"; write a duration, such as 500ms, 1m, 24h or 30d: days stand alone and are whole`},
		"per mixed days": {`{name: r, algorithm: fixed-window, limit: 1, per: 1d12h}`, `1:72: limits.a.rules[0].per: per is the text "1d12h"; write a duration, such as 500ms, 1m, 24h or 30d: days stand alone and are whole`},
		"per a week":     {`{name: r, algorithm: fixed-window, limit: 1, per: 1w}`, `1:72: limits.a.rules[0].per: per is the text "1w"; write a duration, such as 500ms, 1m, 24h or 30d`},
		"per a fraction": {`{name: r, algorithm: fixed-window, limit: 1, per: 1.5}`, `1:72: limits.a.rules[0].per: per is the number 1.5; write a duration, such as 500ms, 1m, 24h or 30d`},

		"opens_on_use of a sliding": {`{name: r, algorithm: sliding-window, limit: 1, per: 1s, opens_on_use: true}`,
			`1:92: limits.a.rules[0].opens_on_use: opens_on_use does not go with sliding-window; remove it`},
		"opens_on_use a word": {`{name: r, algorithm: fixed-window, limit: 1, per: 1s, opens_on_use: first}`,
			`1:90: limits.a.rules[0].opens_on_use: opens_on_use is the text "first"; write true, or remove the line`},
		"lease of a rate": {`{name: r, algorithm: fixed-window, limit: 1, per: 1s, lease: 1m}`, `1:83: limits.a.rules[0].lease: lease does not go with fixed-window; remove it`},
		"lease too short": {`{name: r, algorithm: concurrency, limit: 1, lease: 999ms}`, `1:73: limits.a.rules[0].lease: lease is 999ms; the least is 1s`},
		"lease too long":  {`{name: r, algorithm: concurrency, limit: 1, lease: 25h}`, `1:73: limits.a.rules[0].lease: lease is 25h; the most is 24h`},

		"margin of a window": {`{name: r, algorithm: sliding-window, limit: 1, per: 1s, margin: 1s}`, `1:86: limits.a.rules[0].margin: margin is 1s; it must be less than per (1s)`},
		"margin of a fixed":  {`{name: r, algorithm: fixed-window, limit: 1, per: 1s, margin: 500ms}`, `1:84: limits.a.rules[0].margin: margin is 500ms; in a fixed window it must be less than half of per (1s)`},
		"margin of places":   {`{name: r, algorithm: concurrency, limit: 1, margin: 1ms}`, `1:74: limits.a.rules[0].margin: margin does not go with concurrency; remove it`},
		"margin zero":        {`{name: r, algorithm: fixed-window, limit: 1, per: 1s, margin: 0s}`, `1:84: limits.a.rules[0].margin: margin is 0s; the least is 1us`},
		"max_wait too long":  {`{name: r, algorithm: concurrency, limit: 1, max_wait: 9000h}`, `1:76: limits.a.rules[0].max_wait: max_wait is 9000h; the most is 366d`},
		"on_redis_error":     {`{name: r, algorithm: concurrency, limit: 1, on_redis_error: opens}`, `1:82: limits.a.rules[0].on_redis_error: on_redis_error is "opens"; did you mean open?`},

		"unlimited: yes":       {`{name: r, unlimited: yes}`, `1:43: limits.a.rules[0].unlimited: unlimited is the text "yes"; write true, or remove the line`},
		"unlimited in company": {`{name: r, unlimited: true, algorithm: concurrency, limit: 0}`, "1:60: limits.a.rules[0].algorithm: algorithm stands beside unlimited, which removes the rule; remove one of the two\n1:80: limits.a.rules[0].limit: limit stands beside unlimited, which removes the rule; remove one of the two"},
		"unlimited: false":     {`{name: r, unlimited: false}`, "1:22: limits.a.rules[0]: algorithm is missing; write token-bucket, sliding-window, fixed-window, concurrency or calendar\n1:22: limits.a.rules[0]: limit is missing; write a whole number, or unlimited: true to remove an inherited rule"},
		"unlimited, no name":   {`{unlimited: true}`, `1:22: limits.a.rules[0]: name is missing; every rule needs one, such as account`},
		"name twice": {`{name: r, unlimited: true}, {name: r, algorithm: concurrency, limit: 1}`,
			`1:57: limits.a.rules[1].name: name "r" is taken by rules[0] on line 1; give each rule of a list its own`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checkFaults(t, "limits: {a: {rules: ["+row.rule+"]}}\n", row.want)
		})
	}
}

// checkFaults compares all that is wrong with a text, as Error prints it.
func checkFaults(t *testing.T, text, want string) {
	t.Helper()
	corpus.Add(t, "limits", text)
	p, err := Parse("limits.yaml", []byte(text))
	var fault *policy.Error
	if !errors.As(err, &fault) || p != nil {
		t.Fatalf("got %v, %v, want a *Error", p, err)
	}
	want = "limits.yaml:" + strings.ReplaceAll(want, "\n", "\nlimits.yaml:")
	if got := err.Error(); got != want {
		t.Errorf("got\n%s\nwant\n%s\nin\n%s", got, want, text)
	}
}

// nested returns a file with names n1, n2, … one under another.
func nested(levels int, innermost string) string {
	text := innermost
	for level := levels; level > 1; level-- {
		text = "{scopes: {n" + string(rune('0'+level%10)) + ": " + text + "}}"
	}
	return "limits: {n1: " + text + "}\n"
}

// The bounds themselves are allowed.
func TestPolicyBounds(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", diag.MaxNameBytes)
	for i, rule := range []string{
		0:  `{name: ` + long + `, algorithm: concurrency, limit: 0}`,
		1:  `{name: r, algorithm: concurrency, limit: 1000000000000, lease: 1s}`,
		2:  `{name: r, algorithm: concurrency, limit: 1, lease: 24h, max_wait: 366d}`,
		3:  `{name: r, algorithm: sliding-window, limit: 1, per: 1us}`,
		4:  `{name: r, algorithm: sliding-window, limit: 1, per: 366d, margin: 8783h59m59.999999s}`,
		5:  `{name: r, algorithm: fixed-window, limit: 1, per: 1s, margin: 499999us, max_wait: 1µs}`,
		6:  `{name: r, algorithm: token-bucket, limit: 1, per: 366d, burst: 142}`,
		7:  `{name: r, algorithm: token-bucket, limit: 1000000000000, per: 366d, burst: 100000000000}`,
		8:  `{name: r, algorithm: token-bucket, limit: 0, per: 366d, burst: 1000000000000}`, // suspended
		9:  `{name: "*", unlimited: true}`,
		10: `{"name": 'r', "unlimited": True}`,
		11: `{name: r, unlimited: false, algorithm: "concurrency", limit: 1}`,
		12: `{name: daily, algorithm: calendar, limit: 10000, resets: "0 0 * * *", timezone: America/Los_Angeles}`,
		13: `{name: r, algorithm: calendar, limit: 0, resets: "@monthly", rollover: 1000000000000, spread: true, margin: 29999999us}`,
		14: `{name: r, algorithm: calendar, limit: 1, resets: 0 0 29 2 *, rollover: 0, spread: false}`,
	} {
		text := "limits: {a: {rules: [" + rule + "]}}\n"
		corpus.Add(t, "limits", text)
		if _, err := Parse("limits.yaml", []byte(text)); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
	texts := []string{
		0: nested(8, "{}"),
		1: "unmatched: allow\n",
		2: "limits: {}\n",
		3: "--- # a marker before is fine\nlimits: {a: {rules: [], scopes: {}}}\n...\n",
		4: "{\"limits\": {\"" + long + "\": {}, \"*\": {}, \" \": {}, \"...\": {}}, \"unmatched\": \"deny\"}",
		5: "limits:\n  '<<': {}\n  null: {}\n  yes: {}\n  1e3: {}\n  2026-01-02: {}\n  ~: {}\n",
	}
	for _, word := range policy.Words("unmatched") {
		texts = append(texts, "unmatched: "+word+"\n")
	}
	for i, text := range texts {
		corpus.Add(t, "limits", text)
		if _, err := Parse("limits.yaml", []byte(text)); err != nil {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestPolicyFileSize(t *testing.T) {
	t.Parallel()
	text := append([]byte("limits: {}\n#"), make([]byte, MaxBytes)...)
	for i := len("limits: {}\n#"); i < len(text); i++ {
		text[i] = 'x'
	}
	if _, err := Parse("limits.yaml", text[:MaxBytes]); err != nil {
		t.Errorf("4 MiB: %v", err)
	}
	checkFaults(t, string(text[:MaxBytes+1]),
		`1:1: the file is longer than 4194304 bytes; let "*" carry what scopes have in common`)

	// Text can be short where what it says is not.
	var b strings.Builder
	b.WriteString("limits: {")
	for i := range rune(14_000) {
		b.WriteString(strings.Repeat("\U000e1000", diag.MaxNameBytes/4-1) + string(0xe1000+i) + ": {},")
	}
	b.WriteString("}\n")
	_, err := Parse("limits.yaml", []byte(b.String()))
	if want := `bytes long when written out; the most is 4194304: let "*" carry`; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %.300v, want %s", err, want)
	}
}

// "after ten thousand, a last one gives the number of further ones"
func TestErrorIsBounded(t *testing.T) {
	t.Parallel()
	_, err := Parse("limits.yaml", []byte("limits: {"+strings.Repeat("a,", 10_002)+"}\n"))
	var fault *policy.Error
	if !errors.As(err, &fault) || len(fault.Faults) != 10_001 {
		t.Fatalf("got %.300v", err)
	}
	if got, want := fault.Faults[10_000].Reason, "2 more faults are not listed; correct these first"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestLoadNoFile(t *testing.T) {
	t.Parallel()
	if _, err := Load(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want os.ErrNotExist", err)
	}
	if _, err := Load(t.TempDir()); err == nil {
		t.Error("a directory is a policy")
	}
}

// A cap is a part of a rule that counts units.
func TestCapFaults(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]string{
		"algorithm: concurrency, limit: 1, cap: 10%":              "cap does not go with concurrency; remove it",
		"algorithm: sliding-window, limit: 1, per: 1s, cap: 0%":   "cap is 0%; the least is 1%",
		"algorithm: sliding-window, limit: 1, per: 1s, cap: 101%": "cap is 101%; the most is 100%",
		"algorithm: sliding-window, limit: 1, per: 1s, cap: true": "write whole percents",
	} {
		if _, err := Parse("f", []byte("limits: {a: {rules: [{name: r, "+rule+"}]}}")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", rule, err)
		}
	}
}
