package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policystore"
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
	return programIn(t, map[string]string{"REDIS_URL": url}, strings.NewReader(stdin), args...)
}

// programIn runs the program with variables of the environment.
func programIn(t *testing.T, env map[string]string, stdin io.Reader, args ...string) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), args, func(name string) string { return env[name] }, stdin, &stdout, &stderr)
	return outcome{code, stdout.String(), stderr.String()}
}

// says holds that the program ended with code and printed all of parts.
func (got outcome) says(t *testing.T, code int, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if got.code != code || !strings.Contains(got.stdout+got.stderr, part) {
			t.Errorf("want code %d and %q, got %+v", code, part, got)
		}
	}
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

// published has workers publish the limits of a text.
func published(t *testing.T, rdb *redis.Client, text string) {
	t.Helper()
	p, err := limitsyaml.Parse("limits.yaml", []byte(text))
	must(t, err)
	_, _, err = policystore.New(rdb, policystore.Config{}).PublishFile(t.Context(), "worker", p, false)
	must(t, err)
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

// Bad usage is exit code 2, with what is wrong and what to try on stderr, nothing on stdout, and no call to Redis.
func TestBadUsage(t *testing.T) {
	t.Parallel()
	const url = "https://h/"
	for name, tt := range map[string]struct {
		args []string
		want string
	}{
		"nothing": {nil, "enqueue: no command given: batch, completion, http, schedules\ntry: enqueue -h\n"},

		"http without scope": {[]string{"http", url}, "enqueue http: -scope is required: the path that the request spends from\ntry: enqueue http -scope payments/acme https://api.example.com/charge\n"},
		"unknown flag":       {[]string{"http", "-prio", "1", url}, "enqueue http: unknown flag -prio\ntry: enqueue http -h\n"},
		"empty id":           {[]string{"http", "-scope", "a", "-id", "", url}, "enqueue http: -id is empty\ntry: leave -id out for its default, or check for an unset variable\n"},
		"cost 0":             {[]string{"http", "-cost", "0", url}, "enqueue http: invalid value \"0\" for flag -cost: below 1\ntry: enqueue http -h\n"},
		"cost of a bad unit": {[]string{"http", "-cost", "Tokens=1", url}, "enqueue http: invalid value \"Tokens=1\" for flag -cost: unit \"Tokens\" is no unit's name; write lower-case letters, digits, '-' and '_'\ntry: enqueue http -h\n"},
		"cost fractional":    {[]string{"http", "-cost", "1.5", url}, "enqueue http: invalid value \"1.5\" for flag -cost: not a whole number in plain digits\ntry: enqueue http -h\n"},
		"cost huge":          {[]string{"http", "-cost", "99999999999999999999", url}, "enqueue http: invalid value \"99999999999999999999\" for flag -cost: above 1000000000000\ntry: enqueue http -h\n"},
		"retries":            {[]string{"http", "-scope", "a", "-max-retry", "-1", url}, "enqueue http: -max-retry: -1 is below 0\ntry: enqueue http -h\n"},
		"priority low":       {[]string{"http", "-scope", "a", "-priority", "-1000001", url}, "enqueue http: -priority: -1000001 is below -1000000\ntry: enqueue http -h\n"},
		"delay":              {[]string{"http", "-delay", "5", url}, "enqueue http: invalid value \"5\" for flag -delay: \"5\" is no duration, such as 500ms, 90s, 24h or 30d\ntry: enqueue http -h\n"},
		"timeout":            {[]string{"http", "-scope", "a", "-timeout", "0s", url}, "enqueue http: -timeout 0 leaves no time to run\ntry: -timeout 30s\n"},
		"deadline":           {[]string{"http", "-deadline", "noon", url}, "enqueue http: invalid value \"noon\" for flag -deadline: not an RFC 3339 time, such as 2030-01-31T12:00:00Z\ntry: enqueue http -h\n"},
		"header":             {[]string{"http", "-scope", "a", "-header", "Authorization Bearer geheim", url}, "enqueue http: -header number 1 is not NAME: VALUE, or its name was given before\ntry: enqueue http -header \"X-Tenant: acme\" …\n"},
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

		"remember": {[]string{"batch", "-remember", "-1s", "x"}, "enqueue batch: -remember -1s is below 0\ntry: -remember 24h\n"},
	} {
		got := program(t, "redis://127.0.0.1:1", "", tt.args...)
		if got != (outcome{code: cli.ExitUsage, stderr: tt.want}) {
			t.Errorf("%s:\ngot  %+v\nwant %q", name, got, tt.want)
		}
	}
}

// The error for a file comes before any call to Redis.
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
		got.says(t, cli.ExitFailed, tt.want...)
		if got.stdout != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
	url, _ := private(t)
	program(t, url, "", "batch", dir).says(t, cli.ExitFailed, "cannot read the tasks: read "+dir+": is a directory\ntry: name a file")
}

// TestResultsCannotBeWritten holds that lost results are a failure.
func TestResultsCannotBeWritten(t *testing.T) {
	t.Parallel()
	url, _ := private(t)
	_, closed := io.Pipe()
	must(t, closed.Close())
	for _, args := range [][]string{
		{"http", "-scope", "a", "http://h"}, {"http", "-json", "-scope", "a", "http://h"}, {"batch", "-"}, {"batch", "-json", "-"},
	} {
		getenv := func(name string) string { return map[string]string{"REDIS_URL": url}[name] }
		if code := run(t.Context(), args, getenv, strings.NewReader("{}\n"), closed, io.Discard); code != cli.ExitFailed {
			t.Errorf("%q: exit code %d", args, code)
		}
	}
}

// The environment says where tasks go and within which bounds, and never what is enqueued.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	url, rdb := private(t)
	http := func(more ...string) []string { return append(append([]string{"http"}, more...), "http://h") }
	for _, tt := range []struct {
		name, value string // of a variable more
		args        []string
		code        int
		told        string
	}{
		{"", "", http("-scope", "a/b", "-id", "x"), cli.ExitOK, `{"id":"a//x","queue":"default","state":"enqueued"`},
		{"", "", http("-scope", "a/b", "-app", ""), cli.ExitUsage, "0 bytes"},
		{"", "", http("-scope", "a/b", "-app", strings.Repeat("a", 129)), cli.ExitUsage, "129 bytes"},
		{"", "", http("-id", "x"), cli.ExitUsage, "-scope is required"},
		{"", "", http("-scope", "b"), cli.ExitFailed, "b is not within a"},
		{"HEADWAY_WITHIN", "a//b", []string{"batch", "-"}, cli.ExitUsage, "enqueue batch: -within was read from HEADWAY_WITHIN"},
		{"HEADWAY_REDIS", "redis//:geheim@h", []string{"batch", "-"}, cli.ExitUsage, "enqueue batch: -redis was read from HEADWAY_REDIS"},
	} {
		env := map[string]string{
			"HEADWAY_REDIS": url, "HEADWAY_JSON": "1", "HEADWAY_WITHIN": "a", "HEADWAY_QUEUE": "other", "HEADWAY_SCOPE": "a/other",
			"HEADWAY_ID": "other", "HEADWAY_DELAY": "1h", "HEADWAY_REMEMBER": "1h", "HEADWAY_APP": "shop é",
		}
		env[tt.name] = tt.value
		got := programIn(t, env, strings.NewReader(""), tt.args...)
		got.says(t, tt.code, tt.told)
		if strings.Contains(got.stdout+got.stderr, "geheim") {
			t.Errorf("a secret in %+v", got)
		}
	}
	if n := rdb.LLen(t.Context(), "asynq:{default}:pending").Val(); n != 1 {
		t.Errorf("%d tasks wait", n)
	}
	info, err := asynq.NewInspectorFromRedisClient(rdb).GetTaskInfo("default", "a//x")
	if err != nil || info.Headers[queue.HeaderApp] != queue.EscapeApp("shop é") {
		t.Errorf("%+v, %v", info, err)
	}
}

var must = redistest.Must

// docs/operations.md: "Nothing of it reaches the terminal", whatever stands in a file or in the limits.
func TestNastyNamesAreEscaped(t *testing.T) {
	t.Parallel()
	url, rdb := private(t)
	const scope, nasty = "a\u202e\u2066", "x\x1b[2J\x1b]0;t\a\r\u009b31m\u202e\x7f"
	published(t, rdb, `limits: {"a\u202e\u2066": {apps: ["b\u202e"], paused: true, rules: [{name: "r\u202e", algorithm: concurrency, limit: 1}]}}`)
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

func TestHelp(t *testing.T) {
	t.Parallel()
	for args, part := range map[string]string{
		"-h": "enqueue COMMAND [flags]", "help": "enqueue COMMAND [flags]", "http -h": "--scope SCOPE", "batch --help": "--dry-run", "schedules -help": "catch_up",
		"-version": "enqueue " + cli.Version() + "\n", "completion bash": "__start_enqueue",
	} {
		got := program(t, "", "", strings.Fields(args)...)
		if got.code != cli.ExitOK || got.stderr != "" || !strings.Contains(got.stdout, part) {
			t.Errorf("%q: %+v", args, got)
		}
	}
}
