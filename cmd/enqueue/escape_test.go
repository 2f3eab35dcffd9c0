package main

import (
	"encoding/json"
	"testing"
	"unicode"

	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policystore"
)

// docs/operations.md: "Nothing of it reaches the terminal", whatever stands in a file or in the limits.
func TestNastyNamesAreEscaped(t *testing.T) {
	t.Parallel()
	url, rdb := private(t)
	const scope, nasty = "a\u202e\u2066", "x\x1b[2J\x1b]0;t\a\r\u009b31m\u202e\x7f"
	p, err := limitsyaml.Parse("limits.yaml", []byte(`limits: {"a\u202e\u2066": {apps: ["b\u202e"], paused: true, rules: [{name: "r\u202e", algorithm: concurrency, limit: 1}]}}`))
	must(t, err)
	if _, _, err := policystore.New(rdb, policystore.Config{}).PublishFile(t.Context(), "worker", p, nil); err != nil {
		t.Fatal(err)
	}
	var lines []byte
	for _, line := range []map[string]any{
		{"type": "t", "scope": scope, "id": "i\u202e"},
		{"type": "t", "scope": scope, "id": "i\u202e"},
		{"type": "t" + nasty, "scope": nasty, "id": nasty, "queue": nasty, nasty: nasty},
	} {
		text, err := json.Marshal(line)
		must(t, err)
		lines = append(append(lines, text...), '\n')
	}
	tasks := file(t, "tasks.ndjson", string(lines)+nasty+"\n")
	schedules := file(t, "schedules.yaml", `schedules: {"s\u202e": {cron: "0 0 * * *", task: {type: t, scope: "a\u202e\u2066"}}}`)
	printed := 0
	for _, args := range [][]string{
		{"batch", "-dry-run", tasks}, {"batch", tasks}, {"batch", tasks}, {"batch", nasty}, {"batch", tasks, nasty},
		{"http", "-scope", scope, "-id", "h\u202e", "http://h/"}, {"http", "-scope", scope, "-id", "h\u202e", "http://h/"},
		{"http", "-scope", nasty, "-id", nasty, "-queue", nasty, "http://h/" + nasty}, {"http", "-limits", nasty, "-scope", "a", "http://h/"},
		{"schedules", schedules}, {"schedules", file(t, "bad\u202e.yaml", "schedules: {s: {cron: \"x\u202e\"}}")}, {nasty}, {"http", "-" + nasty},
	} {
		for _, format := range [][]string{nil, {"-json"}} {
			all := append([]string{args[0]}, append(format, args[1:]...)...)
			got := program(t, url, "", all...)
			for _, r := range got.stdout + got.stderr {
				if r != '\n' && !unicode.IsPrint(r) {
					t.Errorf("%q prints %U:\n%q\n%q", all, r, got.stdout, got.stderr)
					break
				}
			}
			printed += len(got.stdout)
		}
	}
	if printed < 1000 {
		t.Errorf("%d bytes were printed: is anything tried at all?", printed)
	}
}
