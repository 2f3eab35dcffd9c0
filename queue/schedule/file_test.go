package schedule

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/corpus"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
)

func TestParse(t *testing.T) {
	t.Parallel()
	got := parseFile(t, `# every field there is
schedules:
  nightly report:
    cron: "0 6 * * 1-5"
    timezone: America/Los_Angeles
    jitter: 5m
    catch_up: all
    task:
      type: http
      scope: payments/acme
      cost: 2
      queue: low
      max_retry: 0
      timeout: 90s
      priority: -3
      http:
        method: POST
        url: "https://api.example.com/report?a=1&b=<2>"
        headers: {X-Tenant: acme, 404: "1"}
        body: |
          {"day": "today"}
  plain:
    cron: "@daily"
    task:
      type: report
      scope: p
      payload: {days: [1, 2.5, -3], name: "a \"b\"", none: null, nothing: , yes: true, nested: {0x10: ~}}
`).Schedules
	want := []Schedule{{
		Name: "nightly report", Cron: "0 6 * * 1-5", Timezone: "America/Los_Angeles", Jitter: 5 * time.Minute, CatchUp: CatchUpAll,
		Task: queue.Task{
			Type: "http", Scope: "payments/acme", Cost: 2, Queue: "low", MaxRetry: queue.Retries(0), Timeout: 90 * time.Second, Priority: -3,
			HTTP: &queue.HTTP{
				Method: "POST", URL: "https://api.example.com/report?a=1&b=<2>",
				Headers: map[string]string{"X-Tenant": "acme", "404": "1"}, Body: "{\"day\": \"today\"}\n",
			},
		},
	}, {
		Name: "plain", Cron: "@daily", Timezone: "UTC", CatchUp: CatchUpLast,
		Task: queue.Task{
			Type: "report", Scope: "p",
			Payload: []byte(`{"days":[1,2.5,-3],"name":"a \"b\"","none":null,"nothing":null,"yes":true,"nested":{"0x10":null}}`),
		},
	}}
	var public []Schedule
	for _, s := range got {
		public = append(public, Schedule{Name: s.Name, Cron: s.Cron, Timezone: s.Timezone, Jitter: s.Jitter, CatchUp: s.CatchUp, Task: s.Task})
	}
	if !reflect.DeepEqual(public, want) {
		t.Errorf("got  %+v\nwant %+v", public, want)
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	const good = "task: {type: report, scope: p}"
	for name, c := range map[string]struct{ text, want string }{
		"nothing":            {"", `f:1:1: the file is empty; write schedules: {} if none are meant`},
		"a list":             {"- a\n", `f:1:1: the file is a list; write schedules: and names under it`},
		"no schedules":       {"limits: {}\n", "f:1:1: limits: limits is not a field of the file; write schedules\nf:1:1: schedules: is missing"},
		"empty schedules":    {"schedules:\n", `f:1:1: schedules: schedules is empty; write names under it, or {} for none`},
		"not YAML":           {"schedules:\n  s: [\n", `f:`},
		"an empty name":      {"schedules:\n  \"\": {cron: '@daily', " + good + "}\n", `f:2:3: schedules."": the name is empty; write 1 to 128 bytes`},
		"a slash":            {"schedules:\n  a/b: {cron: '@daily', " + good + "}\n", `schedules."a/b": the name holds a '/'`},
		"an empty schedule":  {"schedules:\n  s:\n", `f:2:3: schedules.s: s is empty; write its fields under it: cron and task`},
		"nothing in it":      {"schedules:\n  s: {}\n", "f:2:3: schedules.s.cron: cron is missing; write it\nf:2:3: schedules.s.task: task is missing; write it"},
		"an unknown field":   {"schedules:\n  s:\n    cron: '@daily'\n    every: 5m\n    " + good + "\n", `f:4:5: schedules.s.every: every is not a field of a schedule; write cron, timezone, jitter, catch_up or task`},
		"a bad cron":         {"schedules:\n  s:\n    cron: 0 24 * * *\n    " + good + "\n", `f:3:11: schedules.s.cron: hour "24" is not within 0 to 23`},
		"a number as cron":   {"schedules: {s: {cron: 5, " + good + "}}", `schedules.s.cron: cron is the number 5; write five fields`},
		"a bad zone":         {"schedules:\n  s:\n    cron: '@daily'\n    timezone: PST\n    " + good + "\n", `f:4:15: schedules.s.timezone: "PST" is unknown; write a name of the IANA list`},
		"an empty zone":      {"schedules: {s: {cron: '@daily', timezone: '', " + good + "}}", `timezone is empty; write UTC, or leave it out`},
		"a long jitter":      {"schedules:\n  s:\n    cron: '*/10 * * * *'\n    jitter: 10m\n    " + good + "\n", `f:4:13: schedules.s.jitter: jitter is 10m0s and the runs are as close as 10m0s; write less than that`},
		"a fine jitter":      {"schedules: {s: {cron: '@daily', jitter: 1500ms, " + good + "}}", `jitter is 1.5s; write whole seconds`},
		"no jitter":          {"schedules: {s: {cron: '@daily', jitter: 0s, " + good + "}}", `jitter is 0s; write whole seconds, which is what asynq keeps, or leave it out`},
		"jitter of no kind":  {"schedules: {s: {cron: '@daily', jitter: soon, " + good + "}}", `"soon" is no duration`},
		"a bad catch_up":     {"schedules:\n  s:\n    cron: '@daily'\n    catch_up: some\n    " + good + "\n", `f:4:15: schedules.s.catch_up: catch_up is "some"; write none, last or all`},
		"a task that is not": {"schedules: {s: {cron: '@daily', task: report}}", `task is the text "report"; write its fields under it`},
		"an unknown in task": {"schedules: {s: {cron: '@daily', task: {type: r, scope: p, retries: 3}}}", `schedules.s.task.retries: retries is not a field of a schedule's task; write type, scope, cost, queue, max_retry, timeout, max_wait, priority, http or payload`},
		"an id":              {"schedules:\n  s:\n    cron: '@daily'\n    task:\n      type: r\n      scope: p\n      id: x\n", `f:7:7: schedules.s.task.id: id is not for a schedule: each run gets one`},
		"a delay":            {"schedules: {s: {cron: '@daily', task: {type: r, scope: p, delay: 5m}}}", `delay is not for a schedule: cron says when a run is`},
		"a deadline":         {"schedules: {s: {cron: '@daily', task: {type: r, scope: p, deadline: 2030-01-31T12:00:00Z}}}", `deadline is not for a schedule: a moment would end all runs`},
		"no scope":           {"schedules:\n  s:\n    cron: '@daily'\n    task: {type: r}\n", `f:4:5: schedules.s.task.scope: required; the path it spends from`},
		"a bad cost":         {"schedules:\n  s:\n    cron: '@daily'\n    task: {type: r, scope: p, cost: 0}\n", `f:4:37: schedules.s.task.cost: 0 is below 1`},
		"an odd number":      {"schedules: {s: {cron: '@daily', task: {type: r, scope: p, cost: 0x10}}}", `task.cost: cost is the number 0x10; write it as JSON does`},
		"a cost by odd unit": {"schedules: {s: {cron: '@daily', task: {type: r, scope: p, cost: {tokens: -1}}}}", `task.cost.tokens: -1 is below 0`},
		"a wrong type":       {"schedules: {s: {cron: '@daily', task: {type: 5, scope: p}}}", `task.type: type is the number 5; write a text, or "5" in quotes if that text is meant`},
		"no url":             {"schedules:\n  s:\n    cron: '@daily'\n    task:\n      type: http\n      scope: p\n      http: {method: POST}\n", `f:7:13: schedules.s.task.http.url: missing`},
		"a bad url":          {"schedules:\n  s:\n    cron: '@daily'\n    task:\n      type: http\n      scope: p\n      http:\n        url: ftp://a\n", `f:8:14: schedules.s.task.http.url: `},
		"an unknown in http": {"schedules: {s: {cron: '@daily', task: {type: http, scope: p, http: {url: 'http://a/', verb: GET}}}}", `http.verb: verb is not a field of http; write method, url, headers or body`},
		"a header's number":  {"schedules:\n  s:\n    cron: '@daily'\n    task:\n      type: http\n      scope: p\n      http:\n        url: http://a/\n        headers:\n          X-A: a\n          X-Limit: 5\n", `f:11:20: schedules.s.task.http.headers.X-Limit: X-Limit is the number 5; write a text, or "5" in quotes if that text is meant`},
		"a date in it":       {"schedules:\n  s:\n    cron: '@daily'\n    task:\n      type: r\n      scope: p\n      payload:\n        days: [a, 2030-01-31]\n", `f:8:19: schedules.s.task.payload.days[1]: "days[1]" is the date 2030-01-31; write it as JSON does, or in quotes if that text is meant`},
		"a payload too deep": {"schedules: {s: {cron: '@daily', task: {type: r, scope: p, payload: " + strings.Repeat("[", 70) + strings.Repeat("]", 70) + "}}}", `this is not YAML`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			corpus.Add(t, "schedules", c.text)
			_, err := Parse("f", []byte(c.text))
			fe, ok := errors.AsType[*FileError](err)
			if !ok || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("got\n%v\nwant in it\n%s", err, c.want)
			}
			wantPlaces(t, fe)
		})
	}
}

// wantPlaces wants a place for each fault, on one line.
func wantPlaces(t *testing.T, err *FileError) {
	t.Helper()
	for _, f := range err.Faults {
		if f.Line < 1 || f.Column < 1 || strings.ContainsAny(f.String(), "\n\r") {
			t.Errorf("the fault %+v has no place, or more than a line", f)
		}
	}
}

// The error of a file lists all faults at once, in their order, and none twice.
func TestParseListsAllFaults(t *testing.T) {
	t.Parallel()
	_, err := Parse("f", []byte(`schedules:
  a:
    task: {type: 5, http: {url: x}}
    cron: "60 * * * *"
    jitter: 5m
    colour: red
  b: {cron: "@daily", timezone: Mars, task: {type: http, scope: "*", http: {url: "http://a/", headers: {A: 1}}}}
`))
	if err == nil {
		t.Fatal("no error")
	}
	var got []string
	for line := range strings.SplitSeq(err.Error(), "\n") {
		place, _, _ := strings.Cut(line, ": ")
		path := strings.SplitN(line, ": ", 3)[1]
		got = append(got, place+" "+path)
	}
	want := []string{
		"f:3:5 schedules.a.task.scope", "f:3:18 schedules.a.task.type", "f:4:11 schedules.a.cron", "f:6:5 schedules.a.colour",
		"f:7:33 schedules.b.timezone", "f:7:65 schedules.b.task.scope", "f:7:108 schedules.b.task.http.headers.A",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %q\nwant %q\n%v", got, want, err)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "schedules.yaml")
	if _, err := Load(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	must(t, os.WriteFile(path, []byte("schedules: {s: {}}"), 0o600))
	if _, err := Load(path); err == nil || !strings.HasPrefix(err.Error(), path+":1:13: schedules.s.cron") {
		t.Errorf("got %v", err)
	}
	must(t, os.WriteFile(path, []byte("\ufeffschedules: {}\r\n"), 0o600))
	if f, err := Load(path); err != nil || len(f.Schedules) != 0 || f.Name != path {
		t.Errorf("got %v, %v", f, err)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	policy, err := limitsyaml.Parse("limits.yaml", []byte("limits: {p: {rules: [{name: r, algorithm: token-bucket, limit: 5, per: 1s}]}}"))
	must(t, err)
	f := parseFile(t, `schedules:
  good: {cron: "@daily", task: {type: r, scope: p/a}}
  other:
    cron: "@daily"
    task: {type: r, scope: q}
  dear:
    cron: "@daily"
    task: {type: r, cost: 6, scope: p}
`)
	err = f.Check(policy)
	if err == nil || !strings.HasPrefix(err.Error(), `schedules.yaml:5:28: schedules.other.task.scope: scope "q" meets no rule`) ||
		!strings.Contains(err.Error(), `schedules.yaml:8:27: schedules.dear.task.cost: scope "p": cost 6 can never pass`) ||
		strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("got %v", err)
	}
	f.Schedules = f.Schedules[:1]
	if err := f.Check(policy); err != nil {
		t.Errorf("got %v", err)
	}
}

func TestTaskFor(t *testing.T) {
	t.Parallel()
	s := parseFile(t, `schedules: {"a:b": {cron: "@daily", task: {type: r, scope: p}}}`).Schedules[0]
	run := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	task := s.TaskFor(run)
	if task.ID != "schedule:a:b:1795305600" || task.Delay != 0 || task.Remember != 24*time.Hour {
		t.Errorf("got %+v", task)
	}
	if err := task.Validate(); err != nil {
		t.Error(err)
	}
	longest := &Schedule{Name: strings.Repeat("a", diag.MaxNameBytes), Task: s.Task}
	if err := longest.TaskFor(run).Validate(); err != nil {
		t.Error(err)
	}
}

// Each schedule of a file that Parse accepts can be used, and each fault of another has a place.
func FuzzParseSchedules(f *testing.F) {
	for _, seed := range []string{
		"schedules: {s: {cron: '0 6 * * *', timezone: Europe/Berlin, jitter: 5m, catch_up: all, task: {type: r, scope: p, payload: {a: [1, null]}}}}",
		"schedules:\n  s:\n    cron: \"@daily\"\n    task:\n      type: http\n      scope: p/a\n      http: {url: \"http://a/\", headers: {A: b}, body: c}\n",
		"schedules: {&a b: *a}", "schedules: {s: {task: {payload: {\"\\n\": 0x1}}}}", "a: [\n", "\ufeff", "schedules: {[]: {}: 1}",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := Parse("f", data)
		if err != nil {
			fe, ok := errors.AsType[*FileError](err)
			if !ok || len(fe.Faults) == 0 {
				t.Fatalf("got %v", err)
			}
			wantPlaces(t, fe)
			return
		}
		run := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
		for _, s := range file.Schedules {
			if next := s.Next(run); next.IsZero() {
				t.Errorf("%q has no run", s.Cron)
			}
			if err := s.TaskFor(run).Validate(); err != nil {
				t.Errorf("%q makes a task that is none: %v", data, err)
			}
		}
	})
}

// Records only move on, whoever writes them, and the first one stands.
func TestRecordsOnlyMoveOn(t *testing.T) {
	t.Parallel()
	for name, rdb := range map[string]redis.UniversalClient{
		"a server":  redistest.NewServer(t).Client(t),
		"a cluster": redistest.Cluster(t),
		// what docs/operations.md grants, and no more
		"a user of few rights": redistest.NewServer(t).User(t, []string{recordsKey}, "time", "zadd", "zrange", "zremrangebyscore", "pexpire"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, member := records{rdb: rdb}, redistest.Prefix(t)
			begin, err := r.read(t.Context())
			if err != nil || !begin.until[member].IsZero() || time.Since(begin.exact).Abs() > time.Minute {
				t.Fatalf("%+v, %v", begin, err)
			}
			at := func(d time.Duration) []redis.Z { return []redis.Z{record(member, begin.now.Add(d))} }
			for i, step := range []struct {
				first, later []redis.Z
				want         time.Duration
			}{
				{at(0), nil, 0}, {at(time.Hour), nil, 0}, {nil, at(time.Minute), time.Minute}, {nil, at(time.Second), time.Minute}, {nil, nil, time.Minute},
			} {
				must(t, r.write(t.Context(), marks{begin.now, step.first, step.later}))
				st, err := r.read(t.Context())
				if err != nil || !st.until[member].Equal(begin.now.Add(step.want)) {
					t.Errorf("step %d: %v, %v, want %v", i, st.until, err, step.want)
				}
			}
		})
	}
}
