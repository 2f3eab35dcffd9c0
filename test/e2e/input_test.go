package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/test/programs"
	"github.com/headway-go/headway/test/redistest"
)

const plain = "limits: {p: {rules: [{name: all, algorithm: sliding-window, limit: 40, per: 2s, margin: 500ms}]}}\n"

// A Redis that cannot be used is told by every program, with what to do.
func TestUnusableRedis(t *testing.T) {
	t.Parallel()
	api, err := countapi.Start("127.0.0.1:0", countapi.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = api.Close() })
	locked := redistest.NewServer(t, redistest.Options{Password: "open sesame"})
	replica := redistest.NewServer(t, redistest.Options{Args: []string{"--replicaof", "127.0.0.1", "1", "--replica-serve-stale-data", "yes"}})
	full := redistest.NewServer(t, redistest.Options{Args: []string{"--maxmemory", "1"}})
	cluster := redistest.NewServer(t, redistest.Options{Cluster: true})
	limits := file(t, "limits.yaml", plain)
	for name, test := range map[string]struct{ url, what, try string }{
		"down":           {"redis://127.0.0.1:1", "nothing listens at 127.0.0.1:1", "redis-server"},
		"no password":    {"redis://" + locked.Addr(), "needs a password", "PASSWORD"},
		"wrong password": {"redis://:hunter2@" + locked.Addr(), "refuses the user name or password", "check"},
		"replica":        {"redis://" + replica.Addr(), "is a read-only replica", "master"},
		"full":           {"redis://" + full.Addr(), "is full", "maxmemory"},
		"not Redis":      {"redis://" + api.Addr(), "", ""},
		"a cluster":      {"redis://" + cluster.Addr() + "/1", "is a node of a cluster", "redis+cluster://"},
		"no such host":   {"redis://no-such-host.invalid:6379", "no address is known", "check"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tasks := file(t, "tasks.ndjson", `{"type":"http","scope":"p/x","http":{"url":"http://127.0.0.1/"}}`+"\n")
			for prefix, args := range map[string][]string{
				"worker":        {"worker", "-redis", test.url, "-limits", limits},
				"enqueue batch": {"enqueue", "batch", "-redis", test.url, tasks},
				"enqueue http":  {"enqueue", "http", "-redis", test.url, "-scope", "p/x", "http://127.0.0.1/"},
			} {
				stdout, stderr := programs.Run(t, 1, nil, args[0], args[1:]...)
				told(t, stdout, stderr, prefix, test.what, test.try)
				if strings.Count(stderr, "\n") > 3 {
					t.Errorf("%s goes on: %q", prefix, stderr)
				}
				if strings.Contains(stderr, "hunter2") {
					t.Errorf("%s tells the password: %q", prefix, stderr)
				}
			}
		})
	}
}

// The parts of worker that ask a running Redis say no more than that it is not there.
func TestNothingToAsk(t *testing.T) {
	t.Parallel()
	limits := file(t, "limits.yaml", plain)
	for _, args := range [][]string{
		{"inspect", "-redis", "redis://127.0.0.1:1", "-limits", limits, "scope", "p"},
		{"leave", "-redis", "redis://127.0.0.1:1", "-queues", "default"},
	} {
		stdout, stderr := programs.Run(t, 1, nil, "worker", args...)
		told(t, stdout, stderr, "worker", "nothing listens at 127.0.0.1:1", "redis-server")
		if strings.Count(stderr, "\n") > 3 {
			t.Errorf("worker %s goes on: %q", args[0], stderr)
		}
	}
}

// What stands in the command line is told with what to write instead, and
// nothing is tried.
func TestBadUsage(t *testing.T) {
	t.Parallel()
	for prefix, calls := range map[string][][]string{
		"worker": {
			{"worker", "-concurrency", "0"}, {"worker", "-queues", "a=b"}, {"worker", "-nope"}, {"worker", "tasks.ndjson"},
			{"worker", "-listen", "0.0.0.0:9090"}, {"worker", "-allow-host", "http://x"},
		},
		"enqueue":       {{"enqueue"}, {"enqueue", "everything"}},
		"enqueue batch": {{"enqueue", "batch"}, {"enqueue", "batch", "a", "b"}, {"enqueue", "batch", "-remember", "soon", "a"}},
		"enqueue http":  {{"enqueue", "http", "-scope", "p/x"}, {"enqueue", "http", "http://x/"}, {"enqueue", "http", "-scope", "p//x", "http://x/"}},
	} {
		for _, call := range calls {
			stdout, stderr := programs.Run(t, 2, nil, call[0], call[1:]...)
			told(t, stdout, stderr, prefix)
		}
	}
	for _, name := range []string{"worker", "enqueue"} {
		for _, flag := range []string{"-h", "-version"} {
			if stdout, stderr := programs.Run(t, 0, nil, name, flag); stdout == "" || stderr != "" {
				t.Errorf("%s %s: %q, %q", name, flag, stdout, stderr)
			}
		}
	}
}

// A limits file with faults is refused whole: each is told with its line.
func TestBadLimits(t *testing.T) {
	t.Parallel()
	bad := file(t, "limits.yaml", `unmatched: deny
limits:
  payments:
    rules:
      - {name: a, algorithm: sliding-window, limit: 1.5, per: 1s}
      - {name: b, algorithm: fixed-window, limit: 5, per: 0.5us}
      - {name: c, algorithm: token-buckets, limit: 5, per: 1s}
      - {name: d, algorithm: concurrency, limit: 5, burts: 3}
      - {name: e, algorithm: concurrency, limit: -1}
    scope: {}
`)
	lines := []string{":5:", ":6:", ":7:", ":8:", ":9:", ":10:", "burts", "token-bucket?", "scopes"}
	stdout, stderr := programs.Run(t, 1, nil, "worker", "-redis", "redis://127.0.0.1:1", "-limits", bad)
	told(t, stdout, stderr, "worker", lines...)
	_, stderr = programs.Run(t, 1, nil, "enqueue", "batch", "-redis", "redis://127.0.0.1:1", "-limits", bad, "/dev/null")
	for _, want := range lines {
		if !strings.Contains(stderr, want) {
			t.Errorf("enqueue: %q lacks %q", stderr, want)
		}
	}
	for name, text := range map[string]string{
		"not YAML": "limits: [", "binary": "\x00\x01\x02", "a bomb": "a: &a [x,x]\nb: &b [*a,*a]\nlimits: *b\n",
		"empty": "", "a list": "- a\n", "tabs": "limits:\n\tp: {}\n", "two": "limits: {}\n---\nlimits: {}\n",
	} {
		stdout, stderr := programs.Run(t, 1, nil, "worker", "-redis", "redis://127.0.0.1:1", "-limits", file(t, "limits.yaml", text))
		if stdout != "" || !strings.HasPrefix(stderr, "worker: ") || strings.Contains(stderr, "goroutine") {
			t.Errorf("%s: %q, %q", name, stdout, stderr)
		}
	}
	stdout, stderr = programs.Run(t, 1, nil, "worker", "-redis", "redis://127.0.0.1:1", "-limits", "no/such/file.yaml")
	told(t, stdout, stderr, "worker", "no/such/file.yaml")
}

// "A bad line is reported with its number, the good ones are still enqueued, and
// the exit code is 1."
func TestBadLines(t *testing.T) {
	t.Parallel()
	s := newSite(t, plain)
	url := s.api.URL("p/x")
	line := func(fields string) string {
		return `{"type":"http","scope":"p/x","http":{"url":"` + url + `"}` + fields + "}\n"
	}
	bad := []struct{ text, why string }{
		{"{", ""}, {"nonsense", ""}, {"[1,2]", ""}, {`"http"`, ""}, {"null", ""}, {`{"type":"http"}`, "scope"},
		{line(`,"prioritty":3`), "prioritty"}, {line(`,"cost":0`), "cost"}, {line(`,"cost":-1`), "cost"},
		{line(`,"cost":1.5`), "cost"}, {line(`,"cost":41`), "cost"}, {line(`,"cost":1e300`), "cost"},
		{line(`,"cost":"1"`), "cost"}, {line(`,"delay":"0.5us"`), "delay"}, {line(`,"delay":"20000d"`), "delay"},
		{line(`,"delay":"-1s"`), "delay"}, {line(`,"delay":5`), "delay"}, {line(`,"timeout":"soon"`), "timeout"},
		{line(`,"max_retry":-1`), "max_retry"}, {line(`,"max_retry":1e99`), "max_retry"}, {line(`,"queue":"a b"`), "queue"},
		{line(`,"id":"\u0000"`), "id"}, {line(`,"deadline":"yesterday"`), "deadline"},
		{line(`,"deadline":"2001-01-01T00:00:00Z"`), "deadline"}, {line(`,"type":"http"`), "type"},
		{strings.Replace(line(""), "p/x", "q/x", 1), "q/x"}, {strings.Replace(line(""), "p/x", "p//x", 1), "scope"},
		{strings.Replace(line(""), "p/x", "p/*", 1), "scope"}, {strings.Replace(line(""), "p/x", `p/\u0007`, 1), "scope"},
		{strings.Replace(line(""), "p/x", "p/"+strings.Repeat("x", 129), 1), "scope"},
		{strings.Replace(line(""), "p/x", "p"+strings.Repeat("/x", 8), 1), "scope"},
		{`{"type":"http","scope":"p/x","http":{"url":"file:///etc/passwd"}}`, "url"},
		{`{"type":"http","scope":"p/x","http":{"url":"http://a b/"}}`, "url"}, {`{"type":"http","scope":"p/x","http":{}}`, "url"},
		{`{"type":"http","scope":"p/x","http":{"url":"` + url + `","methood":"GET"}}`, "methood"},
		{`{"type":"http","scope":"p/x","http":{"url":"` + url + `","headers":{"a\nb":"c"}}}`, "header"},
		{`{"type":"mail","scope":"p/x","http":{"url":"` + url + `"}}`, "http"}, {`{"type":"mail","scope":"p/x"} {}`, ""},
		{"\xff\xfe{}", ""}, {strings.Repeat("[", 20_000), ""}, {`{"type":"` + strings.Repeat("x", 2<<20) + `"}`, ""},
	}
	var lines strings.Builder
	for i, b := range bad {
		lines.WriteString(strings.TrimSuffix(b.text, "\n") + "\n")
		lines.WriteString(s.line(task{ID: fmt.Sprint("good ", i), Scope: "p/x"}))
	}
	stdout, stderr := s.enqueue(1, lines.String(), "-json")
	results := map[int]struct{ State, Error string }{}
	for text := range strings.Lines(stdout) {
		var r struct {
			Line         int
			State, Error string
		}
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		results[r.Line] = struct{ State, Error string }{r.State, r.Error}
	}
	for i, b := range bad {
		if r := results[2*i+1]; r.State != "invalid" || r.Error == "" || !strings.Contains(r.Error, b.why) {
			t.Errorf("line %d, %.60q: %+v; want %q in it", 2*i+1, b.text, r, b.why)
		}
		if r := results[2*i+2]; r.State != "enqueued" {
			t.Errorf("good line %d: %+v", 2*i+2, r)
		}
	}
	if strings.Contains(stderr, "goroutine") {
		t.Error(stderr)
	}
	stdout, _ = s.enqueue(1, lines.String()) // the same for people, and the good ones again
	for i := range bad {
		if want := fmt.Sprintf("line %d: invalid: ", 2*i+1); !strings.Contains(stdout, want) {
			t.Errorf("%q lacks %q", stdout, want)
		}
	}
	w := s.worker()
	s.until(len(bad))
	s.perfect()
	w.Terminate()
	w.Ends(0)
}

// "A batch can safely be run again": duplicates are told, and nothing runs twice.
func TestBatchTwice(t *testing.T) {
	t.Parallel()
	s := newSite(t, plain)
	const n = 40
	lines := s.lines(n, func(int) task { return task{Scope: "p/x"} })
	summary := func(text string, enqueued, duplicate int) {
		t.Helper()
		if want := fmt.Sprintf("%d lines: %d enqueued, %d duplicate, 0 invalid", n, enqueued, duplicate); !strings.Contains(text, want) {
			t.Errorf("%q lacks %q", text, want)
		}
	}
	first, _ := s.enqueue(0, lines)
	summary(first, n, 0)
	waiting, _ := s.enqueue(0, lines)
	summary(waiting, 0, n)
	w := s.worker()
	s.until(n / 4)
	running, _ := s.enqueue(0, lines)
	summary(running, 0, n)
	s.until(n)
	s.perfect()
	done, _ := s.enqueue(0, lines)
	summary(done, 0, n)
	s.perfect()
	if calls, _ := s.api.Counts(); calls != n {
		t.Errorf("%d calls for %d tasks", calls, n)
	}
	w.Terminate()
	w.Ends(0)
}

// Scopes with any characters arrive under their own limits, and as they were.
func TestHostileScopes(t *testing.T) {
	t.Parallel()
	s := newSite(t, `limits: {p: {scopes: {"*": {rules: [{name: "r:{*}", algorithm: sliding-window, limit: 2, per: 1h}]}}}}`+"\n")
	names := []string{"a", "a:b", "a%2Fb", "a b", "{", "}", "{a}", "**", "?", `\`, `"`, "'", "@", "#", "日本", "😀", "é", "e\u0301", "..", ".", "\u202e", "%", "&", "<x>"}
	s.enqueue(0, s.lines(3*len(names), func(i int) task { return task{Scope: "p/" + names[i/3]} }))
	w := s.worker()
	s.until(2 * len(names))
	s.ask("the third of each to wait", bound, func() bool {
		info, err := s.inspector.GetQueueInfo("default")
		return err == nil && info.Retry+info.Scheduled == len(names)
	})
	rep := s.report()
	if rep.Exceeded() || len(rep.Duplicates)+len(rep.Unknown)+len(rep.Mismatched) > 0 || len(rep.Lost) != len(names) {
		t.Errorf("%q", rep.Violations())
	}
	w.Terminate()
	w.Ends(0)
}

// A port that is taken is told, with what to do.
func TestPortInUse(t *testing.T) {
	t.Parallel()
	s := newSite(t, plain)
	taken := s.api.Addr()
	stdout, stderr := programs.Run(t, 1, nil, "worker", "-redis", s.url(), "-limits", s.limits, "-listen", taken)
	told(t, stdout, stderr, "worker", taken, "the port is in use", "-listen")
}

// Both programs without -redis meet at the worker's embedded server, whose port
// only one worker can have.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	const addr = "127.0.0.1:6390"
	if conn, err := net.Dial("tcp", addr); err == nil {
		_ = conn.Close()
		t.Skipf("something else listens at %s", addr)
	}
	s := newSite(t, plain)
	w := programs.Start(t, nil, "worker", "-limits", s.limits, "-allow-host", s.api.Addr(), "-listen", "127.0.0.1:0")
	w.Says("msg=ready")
	w.Says("nothing is kept on disk")
	stdout, stderr := programs.Run(t, 1, nil, "worker", "-limits", s.limits)
	told(t, stdout, stderr, "worker", addr, "the port is in use", "-redis")

	const n = 50
	lines := s.lines(n, func(int) task { return task{Scope: "p/x"} })
	programs.Run(t, 0, strings.NewReader(lines), "enqueue", "batch", "-") // checked against what the worker has published
	bad := strings.ReplaceAll(s.line(task{ID: "unknown", Scope: "p/x"}), "p/x", "q/x")
	s.tasks = s.tasks[:n]
	if out, _ := programs.Run(t, 1, strings.NewReader(bad), "enqueue", "batch", "-"); !strings.Contains(out, "q/x") {
		t.Errorf("%q", out)
	}
	programs.Run(t, 0, nil, "enqueue", "http", "-scope", "p/x", "-id", "one", "-header", "X-Task-Id: one", s.api.URL("p/x"))
	s.until(n + 1)
	get(t, "http://"+listening(t, w)+"/healthz", http.StatusOK)
	if page := get(t, "http://"+listening(t, w)+"/metrics", http.StatusOK); counted(t, page, `headway_runs_total\{outcome="ok",queue="default"\} (\d+)`) == 0 {
		t.Error("no run is counted")
	}
	if rep := s.report(); rep.Exceeded() || len(rep.Lost)+len(rep.Duplicates) > 0 {
		t.Errorf("%q", rep.Violations())
	}
	w.Terminate()
	w.Ends(0)
}
