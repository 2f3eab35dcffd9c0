package project

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/upstream"
	"github.com/headway-go/headway/throttle/usage"
	"github.com/headway-go/headway/worker/control"
	"github.com/headway-go/headway/worker/events"
)

// redisAt is a client of the Redis of a URL, for the time of a test.
func redisAt(t *testing.T, url string) *redis.Client {
	t.Helper()
	opts, err := redis.ParseURL(url)
	must(t, err)
	rdb := redis.NewClient(opts)
	t.Cleanup(func() { _ = rdb.Close() })
	return rdb
}

// section returns the part of a page under a heading.
func section(t *testing.T, path, heading string) string {
	t.Helper()
	_, after, found := strings.Cut(read(t, path), "\n## "+heading+"\n")
	if !found {
		t.Fatalf("%s has no heading %q", path, heading)
	}
	text, _, _ := strings.Cut(after, "\n## ")
	return text
}

var fieldRow = regexp.MustCompile("(?m)^\\| `([a-z_]+)` \\| (string|number|boolean|object) \\|")

// tables returns the field tables of a section of docs/json.md: type by name.
func tables(t *testing.T, heading string) []map[string]string {
	t.Helper()
	var all []map[string]string
	for part := range strings.SplitSeq(section(t, "docs/json.md", heading), "| field |") {
		fields := map[string]string{}
		for _, m := range fieldRow.FindAllStringSubmatch(part, -1) {
			fields[m[1]] = m[2]
		}
		if len(fields) > 0 {
			all = append(all, fields)
		}
	}
	return all
}

// seen gathers the fields of objects, type by name.
func seen(t *testing.T, objects string) map[string]string {
	t.Helper()
	fields := map[string]string{}
	dec := json.NewDecoder(strings.NewReader(objects))
	for dec.More() {
		var v map[string]any
		if err := dec.Decode(&v); err != nil {
			t.Fatalf("%v in\n%s", err, objects)
		}
		for name, value := range v {
			switch value.(type) {
			case string:
				fields[name] = "string"
			case float64:
				fields[name] = "number"
			case bool:
				fields[name] = "boolean"
			default:
				fields[name] = "object"
			}
		}
	}
	return fields
}

// agree holds the fields that a program prints against those of docs/json.md.
func agree(t *testing.T, what string, want, got map[string]string) {
	t.Helper()
	if !maps.Equal(want, got) {
		t.Errorf("%s: docs/json.md has %v, the program prints %v", what, want, got)
	}
}

// "A test runs the programs and holds the tables below against what they print."
func TestJSONFields(t *testing.T) {
	t.Parallel()
	url := "redis://" + redistest.NewServer(t).Addr()
	enqueue := func(code int, stdin, command string, args ...string) string {
		t.Helper()
		return output(t, code, stdin, "enqueue", append([]string{command, "-redis", url, "-json"}, args...)...)
	}
	limits := writeFile(t, "limits.yaml", "limits: {p: {apps: [worker], rules: [{name: r, algorithm: token-bucket, limit: 5, per: 1s}]}}\n")

	one := enqueue(0, "", "http", "-limits", limits, "-scope", "p", "-id", "a", "https://api.example.com/") +
		enqueue(1, "", "http", "-limits", limits, "-scope", "p", "-cost", "6", "https://api.example.com/")
	behind := writeFile(t, "behind.yaml", "limits: {behind: {rules: [{name: c, algorithm: concurrency, limit: 1}]}}\n")
	redisAt(t, url).Set(t.Context(), "hw:{behind}:t::c", "9 60000000 1000000", 0)
	for range 2 { // the second waits for the first
		one += enqueue(0, "", "http", "-limits", behind, "-scope", "behind", "https://api.example.com/")
	}
	failed := []string{"-limits", limits, "-scope", "p", "-id", "b", "https://api.example.com/"}
	one += enqueue(0, "", "http", failed...)
	must(t, asynq.NewInspectorFromRedisClient(redisAt(t, url)).ArchiveTask("default", "b"))
	one += enqueue(0, "", "http", failed...)
	agree(t, "enqueue http", tables(t, "enqueue http -json")[0], seen(t, one))

	lines := `{"type":"t","id":"a","scope":"p"}` + "\nno task\n" + `{"type":"t","id":"b","scope":"p"}` + "\n" +
		`{"type":"t","id":"c","scope":"p"}` + "\n"
	dry := enqueue(1, lines, "batch", "-dry-run", "-limits", limits, "-")
	batch := enqueue(1, lines, "batch", "-limits", limits, "-")
	results := strings.SplitAfter(strings.TrimSuffix(batch, "\n"), "\n")
	forecast := strings.SplitAfter(strings.TrimSuffix(dry, "\n"), "\n")
	if len(results) != 5 || len(forecast) != 5 {
		t.Fatalf("enqueue batch printed\n%s\nand -dry-run before\n%s", batch, dry)
	}
	inBatch := tables(t, "enqueue batch -json")
	agree(t, "enqueue batch", inBatch[0], seen(t, strings.Join(results[:4], "")))
	waits := enqueue(0, `{"type":"t","id":"e","scope":"behind"}`+"\n", "batch", "-limits", behind, "-")
	_, waits, _ = strings.Cut(waits, "\n")
	agree(t, "its summary", inBatch[1], seen(t, results[4]+waits))
	paused := writeFile(t, "paused.yaml", "limits: {p: {paused: true, paused_until: 2200-01-31T12:00:00Z, rules: [{name: r, algorithm: token-bucket, limit: 5, per: 1s}]}}\n")
	late := lines + `{"type":"t","id":"d","scope":"p","max_wait":"1h"}` + "\n"
	held := enqueue(1, late, "batch", "-dry-run", "-limits", paused, "-")
	runs := writeFile(t, "runs.yaml", "limits: {p: {rules: [{name: c, algorithm: concurrency, limit: 1}]}}\n")
	redisAt(t, url).Set(t.Context(), "hw:{p}:t::c", "9 60000000 1000000", 0)
	held += enqueue(1, lines, "batch", "-dry-run", "-limits", runs, "-")
	dries, ends := forecast[:4], forecast[4:]
	for line := range strings.Lines(held) {
		if strings.HasPrefix(line, `{"summary"`) {
			ends = append(ends, line)
		} else {
			dries = append(slices.Clone(dries), line)
		}
	}
	inForecast := tables(t, "enqueue batch -dry-run -json")
	agree(t, "enqueue batch -dry-run", inForecast[0], seen(t, strings.Join(dries, "")))
	agree(t, "its summary", inForecast[1], seen(t, strings.Join(ends, "")))

	schedules := writeFile(t, "schedules.yaml", "schedules: {s: {cron: '@daily', task: {type: r, scope: p}}}\n")
	agree(t, "enqueue schedules", tables(t, "enqueue schedules -json")[0], seen(t, output(t, 0, "", "enqueue", "schedules", "-json", schedules)))

	health := healthz(t, "-redis", url, "-limits", limits)
	agree(t, "healthz", tables(t, "GET /healthz of worker -listen")[0], seen(t, health))

	inspected(t, url)
	used(t)
	changedLimits(t, url)

	odd := writeFile(t, "odd.yaml", "limits: {p: {rules: [{name: r, algorithm: token-bucket, limit: 5, per: 1s, unit: tokens}]}}\n")
	faulty := writeFile(t, "faulty.yaml", "limits: {p: {rules: [{name: r, algorithm: token-bucket, limit: 5}]}}\n")
	agree(t, "worker limits check", tables(t, "worker limits check -json")[0], seen(t, output(t, 1, "", "worker", "limits", "check", "-json", odd, faulty)))

	record := writeFile(t, "record", `{"v":1,"process":"w","at":1,"slots":1,"sample":0.5}`+"\n"+strings.Repeat(`{"scope":"p/a","wanted":1,"started":1,"ended":2}`+"\n", 2))
	own := writeFile(t, "own.yaml", "limits: {p: {rules: [{name: r, algorithm: concurrency, limit: 1}], scopes: {'*': {rules: [{name: own, algorithm: concurrency, limit: 1}]}}}}\n")
	replayed := strings.SplitAfter(output(t, 0, "", "worker", "limits", "replay", "-json", "-draft", own, record), "\n")
	inReplay := tables(t, "worker limits replay -json")
	agree(t, "worker limits replay", inReplay[0], seen(t, replayed[0]))
	agree(t, "its summary", inReplay[1], seen(t, replayed[1]))

	tasks := output(t, 0, "", "worker", "tasks", "cancel", "a", "-redis", url, "-json")
	tasks, all, _ := strings.Cut(tasks, "\n")
	all += output(t, 0, "", "worker", "tasks", "cancel", "-scope", "p", "-dry-run", "-redis", url, "-json")
	inTasks := tables(t, "worker tasks -json")
	delete(inTasks[1], "more") // TestMostTasks sees it
	agree(t, "worker tasks", inTasks[0], seen(t, tasks))
	agree(t, "its summary", inTasks[1], seen(t, all))

	text, err := json.Marshal(control.Action{
		By: "anna", Via: "cli", Verb: "move", Scope: "p", Queue: "q", Type: "t", Scopes: []string{"p"}, To: "p/a", Reason: "why", Changed: 1, Left: 1, TaskIDs: []string{"b"},
	})
	must(t, err)
	must(t, redisAt(t, url).RPush(t.Context(), "hw:limits:actions", text).Err())
	agree(t, "worker tasks history", tables(t, "worker tasks history -json")[0], seen(t, output(t, 0, "", "worker", "tasks", "history", "-redis", url, "-json")))

	left := output(t, 0, "", "worker", "leave", "-redis", url, "-json")
	agree(t, "worker leave", tables(t, "worker leave -json")[0], seen(t, left))

	samples(t, "enqueue http -json", "worker limits check -json", "enqueue schedules -json", "GET /healthz of worker -listen",
		"worker inspect -json scope", "worker inspect -json task")
}

// samples holds the samples of sections of docs/json.md against their tables.
func samples(t *testing.T, headings ...string) {
	t.Helper()
	for _, heading := range headings {
		for _, b := range parsePage("docs/json.md", section(t, "docs/json.md", heading)).blocks {
			for name := range seen(t, b.text) {
				if _, ok := tables(t, heading)[0][name]; !ok {
					t.Errorf("%s: the sample has a field %s that its table has not", heading, name)
				}
			}
		}
	}
}

// inspected holds what worker inspect prints of one who waits, and of tasks that fail,
// against the tables: together they have every field.
func inspected(t *testing.T, url string) {
	t.Helper()
	limits := writeFile(t, "limits.yaml", "limits: {w: {apps: [worker], rules: [{name: r, algorithm: fixed-window, limit: 1, per: 30d}, {name: s, algorithm: concurrency, limit: 1, shadow: true}, {name: h, algorithm: concurrency, limit: 9, active: '0 0 * * *'}]}, runs: {rules: [{name: c, algorithm: concurrency, limit: 1}]}, pooled: {pool: {members: [a, b]}, scopes: {'@*': {rules: [{name: key, algorithm: fixed-window, limit: 1, per: 30d}]}, '@b': {paused: true, paused_until: 2200-01-31T12:00:00Z}}}}\n")
	redisAt(t, url).Set(t.Context(), "hw:{runs}:t::c", "9 60000000 1000000", 0)
	started(t, url, limits, "w", "runs")
	lines := `{"type":"t","id":"a-1","scope":"w"}` + "\n" + `{"type":"t","id":"a-2","scope":"w","priority":3}` + "\n" +
		`{"type":"t","id":"a-3","scope":"w","cost":{"requests":1,"tokens":9}}` + "\n"
	running := strings.NewReplacer(`"a-`, `"b-`, `"scope":"w"`, `"scope":"runs"`).Replace(lines)
	output(t, 0, lines+running, "enqueue", "batch", "-redis", url, "-limits", limits, "-")
	ask := func(args ...string) string {
		return output(t, 0, "", "worker", append([]string{"inspect", "-redis", url, "-limits", limits, "-json"}, args...)...)
	}
	tasks := ask("task", "a-2") + ask("task", "a-3") + ask("task", "b-2") + ask("task", "a")
	pausedScope, pausedTask := inspectedPaused(t, lines)
	before := ask("scope", "w")
	refused(t, url, limits, "w")
	scope := seen(t, before+ask("scope", "w")+ask("scope", "runs")+ask("scope", "pooled/x")+pausedScope)
	scope["breakers"] = "object" // of one that is open: TestReasonIsABreaker sees it
	scope["tiers"] = "object"    // of names that have one: TestLimitsTier sees them
	agree(t, "worker inspect scope", tables(t, "worker inspect -json scope")[0], scope)
	var pooled struct{ Members []json.RawMessage }
	must(t, json.Unmarshal([]byte(ask("scope", "pooled/x")), &pooled))
	agree(t, "a member", tables(t, "worker inspect -json scope")[3], seen(t, string(pooled.Members[0])+string(pooled.Members[1])))
	listed := strings.SplitAfter(strings.TrimSuffix(ask("scope"), "\n"), "\n")
	listed = []string{strings.Join(listed[:len(listed)-1], ""), listed[len(listed)-1]}
	for i, want := range tables(t, "worker inspect -json scope, without a scope") { // of the scopes, and of all
		agree(t, "worker inspect scope, without a scope", want, seen(t, listed[i]))
	}
	want := tables(t, "worker inspect -json task")[0]
	got := seen(t, tasks+pausedTask)
	got["last_error"] = "string" // of a task that has failed
	got["scope_from"] = "string" // of a task without headers: TestInspectTaskOfSpends sees it
	agree(t, "worker inspect task", want, got)
}

// inspectedPaused is what worker inspect prints of a scope that is paused, and that no rule matches afterwards, and of a task of it.
func inspectedPaused(t *testing.T, lines string) (scope, task string) {
	t.Helper()
	url := "redis://" + redistest.NewServer(t).Addr()
	output(t, 0, "", "worker", "limits", "pause", "w", "-for", "1h", "-redis", url)
	output(t, 0, lines, "enqueue", "batch", "-redis", url, "-")
	ask := func(args ...string) string {
		return output(t, 0, "", "worker", append([]string{"inspect", "-redis", url, "-json"}, args...)...)
	}
	scope, task = ask("scope", "w"), ask("task", "a-2")
	output(t, 0, "", "worker", "limits", "resume", "w", "-redis", url) // a pause is all that it had
	return scope + ask("scope", "w"), task + ask("task", "a-2")
}

// used holds what worker inspect usage prints, and its sample, against the tables.
func used(t *testing.T) {
	t.Helper()
	server := redistest.NewServer(t)
	r, err := usage.New(server.Client(t), usage.Config{App: "billing"})
	must(t, err)
	by := usage.By{Queue: "invoices", Type: "http", EnqueuedBy: "shop"}
	for n := range 40 { // a 41st is one of the others
		r.SpentCosts("payments/acme", by, policy.Costs{"requests": 3, "tokens": 1500})
		by.Type = fmt.Sprint(n)
	}
	r.SpentCosts("payments/acme", by, policy.Costs{"tokens": 500})
	r.Shadowed(throttle.Shadowed{RuleState: throttle.RuleState{RuleInfo: &throttle.RuleInfo{Scope: "payments", Rule: "trial"}}, Outcome: throttle.ShadowAllowed})
	must(t, r.Flush(t.Context()))
	const heading = "worker inspect usage -json"
	sample := parsePage("docs/json.md", section(t, "docs/json.md", heading)).blocks[0].text
	for what, text := range map[string]string{
		"by the program": output(t, 0, "", "worker", "inspect", "usage", "-redis", "redis://"+server.Addr(), "-json", "payments"),
		"in its sample":  sample,
	} {
		objects := slices.Collect(strings.Lines(text))
		if len(objects) < 2 {
			t.Fatalf("worker inspect usage: %s\n%s", what, text)
		}
		for i, object := range []string{objects[0], objects[len(objects)-1]} {
			agree(t, "worker inspect usage, "+what, tables(t, heading)[i], seen(t, object))
		}
	}
}

// changedLimits holds what worker limits prints against the tables.
func changedLimits(t *testing.T, url string) {
	t.Helper()
	ask := func(code int, args ...string) string {
		return output(t, code, "", "worker", append([]string{"limits", "-redis", url, "-json"}, args...)...)
	}
	file := writeFile(t, "limits.yaml", "limits: {p: {tiers: {gold: {}, free: {}}, rules: [{name: r, algorithm: token-bucket, limit: 7, per: 1m}]}, held: {rules: [{name: c, algorithm: concurrency, limit: 1}]}}\n")
	redisAt(t, url).Set(t.Context(), "hw:{held}:t::c", "9 60000000 1000000", 0)
	started(t, url, file, "held")
	output(t, 0, strings.Repeat(`{"type":"t","scope":"held"}`+"\n", 2), "enqueue", "batch", "-redis", url, "-limits", file, "-")
	made := ask(0, "set", "p/x", "n", "algorithm=concurrency", "limit=3", "-for", "2h") + ask(0, "import", "-replace", file)
	held := ask(0, "show", "held") // a task waits there
	tiered := ask(0, "tier", "p/x", "gold") + ask(0, "tier", "p/x", "free")
	agree(t, "worker limits tier", map[string]string{"scope": "string", "tier": "string"}, seen(t, ask(0, "tier")))
	made += ask(0, "set", "p/x", "n", "algorithm=concurrency", "limit=3", "-for", "2h") + ask(0, "remove", "p", "r") + ask(0, "rollback", "2")
	made += ask(0, "assign", "p/x", "weight=2", "-reason", "a trial")
	refused(t, url, writeFile(t, "second.yaml", "limits: {p: {rules: [{name: r, algorithm: token-bucket, limit: 5, per: 1s}]}}\n"), "p")
	shown := seen(t, ask(0, "list")+ask(0, "show", "p/x")+held)
	shown["reset"] = "string"        // of a rule with units taken: TestInspectRules sees it
	shown["vendor_limit"] = "number" // that an API has reported: TestVendorLimit sees it
	table := tables(t, "worker limits -json")
	made += ask(0, "set", "p", "r", "limit=9", "-for", "1h") + ask(0, "set", "p", "r", "limit=8") + ask(0, "set", "p", "r", "limit=6", "-for", "3h")
	versions := regexp.MustCompile(`"version":(\d+)`).FindAllStringSubmatch(made, -1)
	first, last := versions[len(versions)-3][1], versions[len(versions)-1][1]
	history, change := maps.Clone(table[1]), maps.Clone(table[1])
	delete(history, "reach")
	delete(change, "resets")
	tried := ask(0, "pause", "p", "-dry-run") + ask(0, "reset", "p", "-dry-run")
	cleared := ask(0, "reset", "p")
	for what, c := range map[string]struct{ want, got map[string]string }{
		"list and show": {table[0], shown},
		"a change":      {change, seen(t, tiered+made)},
		"history":       {history, seen(t, ask(0, "history"))},
		"diff":          {table[2], seen(t, ask(1, "diff", file)+ask(1, "diff", writeFile(t, "empty.yaml", "limits: {}"))+ask(1, "diff", first, last))},
		"export":        {table[3], seen(t, ask(0, "export"))},
		"a dry run":     {tables(t, "worker limits -dry-run -json")[0], seen(t, tried)},
		"reset":         {table[4], seen(t, cleared)},
		"drain":         {table[5], lastOf(t, ask(0, "drain", "p"))},
	} {
		agree(t, "worker limits, "+what, c.want, c.got)
	}
}

// lastOf are the fields of the last object.
func lastOf(t *testing.T, objects string) map[string]string {
	t.Helper()
	lines := strings.SplitAfter(strings.TrimSuffix(objects, "\n"), "\n")
	return seen(t, lines[len(lines)-1])
}

// refused has an API refuse a call of a scope.
func refused(t *testing.T, url, limits, scope string) {
	t.Helper()
	_, err := limiterAt(t, url, limits).Report(t.Context(), scope, upstream.Hint{Limited: true, Retry: time.Hour, RetryKnown: true})
	must(t, err)
}

// started has a run of each scope begin, which does not end.
func started(t *testing.T, url, limits string, scopes ...string) {
	t.Helper()
	for _, scope := range scopes {
		if d, err := limiterAt(t, url, limits).Decide(t.Context(), throttle.Request{Scope: scope}); err != nil || !d.Allowed {
			t.Fatalf("%+v, %v", d, err)
		}
	}
}

func limiterAt(t *testing.T, url, limits string) *throttle.Limiter {
	t.Helper()
	policy, err := limitsyaml.Load(limits)
	must(t, err)
	limiter, err := throttle.New(redisAt(t, url), policy, throttle.Config{App: "worker"})
	must(t, err)
	return limiter
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// output runs a program to its end and returns its standard output.
func output(t *testing.T, code int, stdin, name string, args ...string) string {
	t.Helper()
	stdout, _ := programs.Run(t, code, strings.NewReader(stdin), name, args...)
	return stdout
}

// listening is where a worker serves its pages, by its log in text or in JSON.
func listening(worker *programs.Program) string {
	worker.Says("listening")
	return regexp.MustCompile(`listening\W+addr\W+([\d.]+:\d+)`).FindStringSubmatch(worker.Stderr.String())[1]
}

// healthz runs a worker until it has told of everything, and returns what.
func healthz(t *testing.T, args ...string) (body string) {
	t.Helper()
	worker := programs.Start(t, nil, "worker", slices.Concat(args, []string{"-listen", "127.0.0.1:0"})...)
	addr := listening(worker)
	redistest.WaitFor(t, "worker to know how many there are", programs.Bound, func() bool {
		res, err := http.Get("http://" + addr + "/healthz")
		if err != nil {
			return false
		}
		defer func() { _ = res.Body.Close() }()
		text, err := io.ReadAll(res.Body)
		body = string(text)
		return err == nil && strings.Contains(body, `"workers":`)
	})
	worker.Terminate()
	worker.Ends(0)
	return body
}

// docs/json.md: "A test compares the table with the code": each field of an event by its type.
func TestEventJSON(t *testing.T) {
	t.Parallel()
	var e events.Event
	v := reflect.ValueOf(&e).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Interface().(type) {
		case time.Time:
			f.Set(reflect.ValueOf(time.Now()))
		case []string:
			f.Set(reflect.ValueOf([]string{"x"}))
		case bool:
			f.SetBool(true)
		default:
			if f.CanInt() {
				f.SetInt(1)
			} else {
				f.SetString("x")
			}
		}
	}
	body, err := json.Marshal(e)
	must(t, err)
	want := tables(t, "The body of an event")[0]
	agree(t, "an event", want, seen(t, string(body)))
	samples(t, "The body of an event")
}
