package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) {
	cli.RouteRedisLog(nil)
	os.Exit(redistest.Main(m))
}

// outcome is what a run of the program left.
type outcome struct {
	code           int
	stdout, stderr string
}

// program runs the program against url.
func program(t *testing.T, url, stdin string, args ...string) outcome {
	t.Helper()
	return programOf(t.Context(), url, strings.NewReader(stdin), args...)
}

func programOf(ctx context.Context, url string, stdin io.Reader, args ...string) outcome {
	getenv := func(key string) string {
		if key == "REDIS_URL" {
			return url
		}
		return ""
	}
	var stdout, stderr bytes.Buffer
	code := run(ctx, args, getenv, stdin, &stdout, &stderr)
	return outcome{code, stdout.String(), stderr.String()}
}

// private starts a Redis of the test's own and returns its URL and a client.
func private(t *testing.T, opts ...redistest.Options) (string, *redis.Client) {
	t.Helper()
	server := redistest.NewServer(t, opts...)
	return "redis://" + server.Addr(), server.Client(t)
}

// file writes a file and returns its path.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// golden holds got against testdata/name. A missing file fails.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		must(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; go test ./cmd/enqueue -update writes it", err)
	}
	if got != string(want) {
		t.Errorf("%s differs:\n%s", path, got)
	}
}

const noPolicy = "no worker has published limits yet: scopes and costs stay unchecked until a worker takes the tasks\ntry: -limits FILE to check them here\n"

// TestBadUsage holds that bad usage is told as what and try on stderr, with exit
// code 2, nothing on stdout, and without reaching for Redis.
func TestBadUsage(t *testing.T) {
	t.Parallel()
	const url = "https://h/"
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"nothing":         {nil, "enqueue: no command given: http, batch or schedules\ntry: enqueue -h\n"},
		"unknown command": {[]string{"htp"}, "enqueue: unknown command \"htp\": the commands are http, batch and schedules; did you mean http?\ntry: enqueue -h\n"},
		"flag first":      {[]string{"-json", "batch"}, "enqueue: unknown command \"-json\": the commands are http, batch and schedules\ntry: enqueue -h\n"},

		"http without URL":   {[]string{"http", "-scope", "a"}, "enqueue http: no URL given\ntry: enqueue http -scope payments/acme https://api.example.com/charge\n"},
		"http without scope": {[]string{"http", url}, "enqueue http: -scope is required: the path that the request spends from\ntry: enqueue http -scope payments/acme https://api.example.com/charge\n"},
		"flag after URL":     {[]string{"http", "-scope", "a", url, "-cost", "2"}, "enqueue http: -cost comes after the URL; put flags before it\ntry: enqueue http -scope payments/acme https://api.example.com/charge\n"},
		"two URLs":           {[]string{"http", "-scope", "a", url, "b"}, "enqueue http: one URL at a time, and \"b\" is a second one\ntry: enqueue http -scope payments/acme https://api.example.com/charge\n"},
		"unknown flag":       {[]string{"http", "-prio", "1", url}, "enqueue http: flag provided but not defined: -prio\ntry: enqueue http -h\n"},
		"empty id":           {[]string{"http", "-scope", "a", "-id", "", url}, "enqueue http: -id is empty\ntry: leave -id out for its default, or check for an unset variable\n"},
		"cost 0":             {[]string{"http", "-cost", "0", url}, "enqueue http: invalid value \"0\" for flag -cost: below 1\ntry: enqueue http -h\n"},
		"cost of a bad unit": {[]string{"http", "-cost", "Tokens=1", url}, "enqueue http: invalid value \"Tokens=1\" for flag -cost: unit \"Tokens\" is no unit's name; write lower-case letters, digits, '-' and '_'\ntry: enqueue http -h\n"},
		"cost negative":      {[]string{"http", "-cost", "-1", url}, "enqueue http: invalid value \"-1\" for flag -cost: below 1\ntry: enqueue http -h\n"},
		"cost fractional":    {[]string{"http", "-cost", "1.5", url}, "enqueue http: invalid value \"1.5\" for flag -cost: not a whole number in plain digits\ntry: enqueue http -h\n"},
		"cost exponent":      {[]string{"http", "-cost", "1e3", url}, "enqueue http: invalid value \"1e3\" for flag -cost: not a whole number in plain digits\ntry: enqueue http -h\n"},
		"cost huge":          {[]string{"http", "-cost", "99999999999999999999", url}, "enqueue http: invalid value \"99999999999999999999\" for flag -cost: above 1000000000000\ntry: enqueue http -h\n"},
		"retries":            {[]string{"http", "-max-retry", "-1", url}, "enqueue http: invalid value \"-1\" for flag -max-retry: below 0\ntry: enqueue http -h\n"},
		"priority high":      {[]string{"http", "-priority", "1000001", url}, "enqueue http: invalid value \"1000001\" for flag -priority: above 1000000\ntry: enqueue http -h\n"},
		"priority low":       {[]string{"http", "-priority", "-1000001", url}, "enqueue http: invalid value \"-1000001\" for flag -priority: below -1000000\ntry: enqueue http -h\n"},
		"priority in words":  {[]string{"http", "-priority", "high", url}, "enqueue http: invalid value \"high\" for flag -priority: not a whole number in plain digits\ntry: enqueue http -h\n"},
		"delay":              {[]string{"http", "-delay", "5", url}, "enqueue http: invalid value \"5\" for flag -delay: \"5\" is no duration, such as 500ms, 90s, 24h or 30d\ntry: enqueue http -h\n"},
		"timeout":            {[]string{"http", "-timeout", "0", url}, "enqueue http: invalid value \"0\" for flag -timeout: 0 leaves no time to run\ntry: enqueue http -h\n"},
		"deadline":           {[]string{"http", "-deadline", "noon", url}, "enqueue http: invalid value \"noon\" for flag -deadline: not an RFC 3339 time, such as 2030-01-31T12:00:00Z\ntry: enqueue http -h\n"},
		"header":             {[]string{"http", "-scope", "a", "-header", "Authorization Bearer geheim", url}, "enqueue http: -header number 1 is not NAME: VALUE, or its name was given before\ntry: enqueue http -header \"X-Tenant: acme\" …\n"},
		"header twice":       {[]string{"http", "-scope", "a", "-header", "X: geheim", "-header", "X: geheim", url}, "enqueue http: -header number 2 is not NAME: VALUE, or its name was given before\ntry: enqueue http -header \"X-Tenant: acme\" …\n"},
		"every fault": {
			[]string{"http", "-scope", "a//b", "-queue", "a b", "-method", "G T", "-header", "X Y: geheim", "-deadline", "2001-01-01T00:00:00Z", "ftp://u:geheim@h"},
			"enqueue http: -scope: \"a//b\": name 2 is empty; write 1 to 128 bytes\n" +
				"enqueue http: -queue: \"a b\"; a queue name is letters, digits, _, - and .\n" +
				"enqueue http: -deadline: 2001-01-01T00:00:00Z has passed\n" +
				"enqueue http: -method: \"G T\": not an HTTP method; write a word such as GET or POST\n" +
				"enqueue http: URL: must begin with http:// or https://\n" +
				"enqueue http: -header: a name of 3 bytes is no header name\n" +
				"try: enqueue http -h\n",
		},

		"batch without FILE": {[]string{"batch"}, "enqueue batch: no FILE given\ntry: enqueue batch tasks.ndjson, or enqueue batch - for standard input\n"},
		"flag after FILE":    {[]string{"batch", "x", "-json"}, "enqueue batch: -json comes after the FILE; put flags before it\ntry: enqueue batch tasks.ndjson, or enqueue batch - for standard input\n"},
		"two FILEs":          {[]string{"batch", "x", "-"}, "enqueue batch: one FILE at a time, and \"-\" is a second one\ntry: enqueue batch tasks.ndjson, or enqueue batch - for standard input\n"},
		"remember":           {[]string{"batch", "-remember", "-1s", "x"}, "enqueue batch: invalid value \"-1s\" for flag -remember: \"-1s\" is negative\ntry: enqueue batch -h\n"},
	} {
		got := program(t, "redis://127.0.0.1:1", "", tt.args...)
		if got != (outcome{code: cli.ExitUsage, stderr: tt.want}) {
			t.Errorf("%s:\ngot  %+v\nwant %q", name, got, tt.want)
		}
	}
}

// TestFilesThatCannotBeUsed holds that a file that is wrong is told before Redis
// is asked for.
func TestFilesThatCannotBeUsed(t *testing.T) {
	t.Parallel()
	limits := file(t, "limits.yaml", "limits:\n  a:\n    rules:\n      - {name: r, algorithm: concurrency, limit: -1, colour: red}\n")
	tasks := file(t, "tasks.ndjson", "")
	large := file(t, "body", strings.Repeat("x", 1<<20+1))
	dir := t.TempDir()
	for name, tt := range map[string]struct {
		args []string
		want []string // parts of stderr
	}{
		"no limits":   {[]string{"batch", "-limits", dir + "/none.yaml", tasks}, []string{"cannot read the limits: ", "no such file or directory\ntry: -limits FILE, or no -limits"}},
		"bad limits":  {[]string{"batch", "-limits", limits, tasks}, []string{"limits.yaml:4:", "colour", "-1"}},
		"no tasks":    {[]string{"batch", dir + "/none"}, []string{"cannot read the tasks: open " + dir + "/none: no such file or directory\ntry: check the path"}},
		"no body":     {[]string{"http", "-scope", "a", "-body", "@" + dir + "/none", "http://h"}, []string{"cannot read the body: open " + dir + "/none: no such file or directory\ntry: check the path"}},
		"a directory": {[]string{"http", "-scope", "a", "-body", "@" + dir, "http://h"}, []string{"cannot read the body: read " + dir + ": is a directory\ntry: name a file"}},
		"large body":  {[]string{"http", "-scope", "a", "-body", "@" + large, "http://h"}, []string{"is longer than 1048576 bytes\ntry: "}},
	} {
		got := program(t, "redis://127.0.0.1:1", "", tt.args...)
		if got.code != cli.ExitFailed || got.stdout != "" {
			t.Errorf("%s: %+v", name, got)
		}
		for _, part := range tt.want {
			if !strings.Contains(got.stderr, part) {
				t.Errorf("%s: no %q in %q", name, part, got.stderr)
			}
		}
	}
	url, _ := private(t)
	got := program(t, url, "", "batch", dir)
	if got.code != cli.ExitFailed || !strings.Contains(got.stderr, "cannot read the tasks: read "+dir+": is a directory\ntry: name a file") {
		t.Errorf("tasks in a directory: %+v", got)
	}
}

// full is a disk without room.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left") }

// TestResultsCannotBeWritten holds that lost results are a failure.
func TestResultsCannotBeWritten(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	for _, args := range [][]string{
		{"-h"}, {"-version"}, {"http", "-h"},
		{"http", "-scope", "a", "http://h"}, {"http", "-json", "-scope", "a", "http://h"}, {"batch", "-"}, {"batch", "-json", "-"},
	} {
		var stderr bytes.Buffer
		getenv := func(name string) string { return map[string]string{"REDIS_URL": url}[name] }
		code := run(t.Context(), args, getenv, strings.NewReader("{}\n"), full{}, &stderr)
		if code != cli.ExitFailed {
			t.Errorf("%q: exit code %d, %s", args, code, stderr.String())
		}
	}
}

// The environment says where tasks go and within which bounds, and never what is enqueued.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	url, rdb := private(t)
	env := map[string]string{
		"HEADWAY_REDIS": url, "HEADWAY_JSON": "1", "HEADWAY_WITHIN": "a", "HEADWAY_QUEUE": "other", "HEADWAY_SCOPE": "a/other", "HEADWAY_ID": "other",
		"HEADWAY_DELAY": "1h", "HEADWAY_REMEMBER": "1h", "HEADWAY_APP": "shop é",
	}
	enqueue := func(args ...string) outcome {
		var stdout, stderr bytes.Buffer
		code := run(t.Context(), args, func(name string) string { return env[name] }, strings.NewReader(""), &stdout, &stderr)
		return outcome{code, stdout.String(), stderr.String()}
	}
	if got := enqueue("http", "-scope", "a/b", "-id", "x", "http://h"); got.code != cli.ExitOK || !strings.Contains(got.stdout, `{"id":"a//x","queue":"default","state":"enqueued"`) {
		t.Errorf("%+v", got)
	}
	if n := rdb.LLen(t.Context(), "asynq:{default}:pending").Val(); n != 1 {
		t.Errorf("%d tasks wait", n)
	}
	info, err := asynq.NewInspectorFromRedisClient(rdb).GetTaskInfo("default", "a//x")
	if err != nil || info.Headers[queue.HeaderApp] != queue.EscapeApp("shop é") {
		t.Errorf("%+v, %v", info, err)
	}
	for name, want := range map[string]string{"": "0 bytes", strings.Repeat("a", 129): "129 bytes"} {
		if got := enqueue("http", "-app", name, "-scope", "a/b", "http://h"); got.code != cli.ExitUsage || !strings.Contains(got.stderr, want) {
			t.Errorf("-app of %d bytes: %+v", len(name), got)
		}
	}
	if got := enqueue("http", "-id", "x", "http://h"); got.code != cli.ExitUsage || !strings.Contains(got.stderr, "-scope is required") {
		t.Errorf("a scope from the environment: %+v", got)
	}
	if got := enqueue("http", "-scope", "b", "http://h"); got.code == cli.ExitOK {
		t.Errorf("outside of HEADWAY_WITHIN: %+v", got)
	}
	env["HEADWAY_WITHIN"] = "a//b"
	if got := enqueue("batch", "-"); got.code != cli.ExitUsage || !strings.Contains(got.stderr, `enqueue batch: invalid value "a//b" for HEADWAY_WITHIN: `) {
		t.Errorf("%+v", got)
	}
	env["HEADWAY_WITHIN"], env["HEADWAY_REDIS"] = "", "redis//:geheim@h"
	if got := enqueue("batch", "-"); got.code != cli.ExitUsage || !strings.Contains(got.stderr, "try: HEADWAY_REDIS=redis://") || strings.Contains(got.stderr, "geheim") {
		t.Errorf("%+v", got)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
