package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/test/redistest"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestHelp(t *testing.T) {
	t.Parallel()
	r := start(t, with(newFakeSystem()), nil, "-h")
	r.ends(cli.ExitOK)
	golden(t, "testdata/help.golden", r.stdout.String())
	if r.stderr.String() != "" {
		t.Errorf("stderr: %s", r.stderr.String())
	}
}

func golden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		must(t, os.WriteFile(path, []byte(got), 0o600))
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; make it with go test ./cmd/worker -update, and read it", err)
	}
	if got != string(want) {
		t.Errorf("not what %s holds; compare, then go test ./cmd/worker -update\n%s", path, got)
	}
}

// TestHelpNamesFlags holds that -h teaches every flag, with the default and the variable
// that it has.
func TestHelpNamesFlags(t *testing.T) {
	t.Parallel()
	c, _ := newWorker()
	help := c.Help()
	c.Flags.VisitAll(func(f *flag.Flag) {
		_, rest, found := strings.Cut(help, "\n  -"+f.Name+" ")
		if !found {
			t.Errorf("-h does not name -%s", f.Name)
			return
		}
		text, _, _ := strings.Cut(rest, "\n  -")
		value := strings.TrimSuffix(f.DefValue, "m0s") // 10m0s is 10m
		if value == "0s" {
			value = "0"
		}
		if value != "" && value != "false" && !strings.Contains(text, "Default: "+value) {
			t.Errorf("-h does not give the default %s of -%s", value, f.Name)
		}
		if got := strings.Contains(text, "["+cli.Variable(f.Name)+"]"); got != (f.Name != "version") {
			t.Errorf("-h names the variable of -%s: %v", f.Name, got)
		}
	})
	for _, line := range strings.Split(help, "\n") {
		if len([]rune(line)) > 80 {
			t.Errorf("a line of -h is wider than 80 columns: %s", line)
		}
	}
}

func TestVersion(t *testing.T) {
	t.Parallel()
	r := start(t, with(newFakeSystem()), nil, "-version")
	r.ends(cli.ExitOK)
	if got, want := r.stdout.String(), "worker "+cli.Version()+"\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestUsageErrors holds that bad usage is exit code 2, an empty stdout, and
// for each fault what is wrong and what to try.
func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args []string
		env  map[string]string
		want []string
	}{
		"unknown flag":     {[]string{"-x"}, nil, []string{"worker: flag provided but not defined: -x", "try: worker -h"}},
		"flag misspelt":    {[]string{"-limit", "x"}, nil, []string{"not defined: -limit; did you mean -limits?"}},
		"command misspelt": {[]string{"limts"}, nil, []string{`unexpected argument "limts"`, "did you mean limits?"}},
		"verb misspelt":    {[]string{"limits", "sett"}, nil, []string{`limits cannot be "sett"; did you mean set?`}},
		"argument":         {[]string{"limits.yaml"}, nil, []string{`worker: unexpected argument "limits.yaml"`}},
		"concurrency 0":    {[]string{"-concurrency", "0"}, nil, []string{"worker: -concurrency 0 is not from 1 to 10000", "try: -concurrency 32"}},
		"concurrency huge": {[]string{"-concurrency", "10001"}, nil, []string{"-concurrency 10001 is not"}},
		"concurrency word": {[]string{"-concurrency", "x"}, nil, []string{`invalid value "x" for flag -concurrency`}},
		"patience": {[]string{"-patience", "hope"}, nil,
			[]string{`-patience "hope" is unknown`, "try: -patience wait, fail, drop or move=QUEUE"}},
		"patience to nowhere": {[]string{"-patience", "move=a b"}, nil, []string{`-patience: "a b" is not a queue name`, "try: -patience move=slow"}},
		"queue":               {[]string{"-queues", "a=1,b"}, nil, []string{`-queues: "b" has no weight`, "try: -queues b=1"}},
		"level":               {[]string{"-log-level", "loud"}, nil, []string{`-log-level "loud" is unknown`}},
		"summary":             {[]string{"-summary", "-1m"}, nil, []string{"-summary -1m0s is below 1s", "try: -summary 1m"}},
		"format":              {[]string{"-log-format", "xml"}, nil, []string{`-log-format "xml" is unknown`}},
		"max-timeout":         {[]string{"-max-timeout", "0s"}, nil, []string{"-max-timeout 0s is not above 0", "try: -max-timeout 10m"}},
		"drain":               {[]string{"-drain", "-1s"}, nil, []string{"-drain -1s is below 0"}},
		"allow-host":          {[]string{"-allow-host", "http://x/"}, nil, []string{"worker: -allow-host: ", "try: -allow-host localhost:8080"}},
		"allow-host, both":    {[]string{"-allow-host", "a b", "-allow-host", "*.c"}, nil, []string{`worker: -allow-host: allow host "a b": has a part that is not`, `worker: -allow-host: allow host "*.c": has no wildcards`}},
		"only-host":           {[]string{"-only-host", "*.example.com"}, nil, []string{`worker: -only-host: only host "*.example.com": has no wildcards; name each host`, "try: -only-host api.example.com"}},
		"deny-cidr":           {[]string{"-deny-cidr", "10.1.2.3/8"}, nil, []string{`worker: -deny-cidr: deny CIDR "10.1.2.3/8": has bits beyond its length; write 10.0.0.0/8`, "try: -deny-cidr 10.0.0.0/8"}},
		"ports":               {[]string{"-ports", "80,0"}, nil, []string{"worker: -ports: port 0 is not between 1 and 65535", "try: -ports 80,443"}},
		"ports, a word":       {[]string{"-ports", "80,https"}, nil, []string{`invalid value "80,https" for flag -ports: not ports with commas between them, such as 80,443`}},
		"ports, empty":        {[]string{"-ports", ""}, nil, []string{`invalid value "" for flag -ports`}},
		"allow-method":        {[]string{"-allow-method", "CONNECT"}, nil, []string{`invalid value "CONNECT" for flag -allow-method: a method that opens a tunnel`, "try: worker -h"}},
		"allow-method empty":  {[]string{"-allow-method", ""}, nil, []string{"not an HTTP method"}},
		"listen":              {[]string{"-listen", "9090"}, nil, []string{`-listen "9090" is not HOST:PORT`, "try: -listen :9090"}},
		"listen to all":       {[]string{"-listen", "0.0.0.0:9090"}, nil, []string{"HEADWAY_LISTEN_TOKEN is not set"}},
		"short token":         {[]string{"-listen", ":9090"}, map[string]string{tokenVariable: "secret"}, []string{"HEADWAY_LISTEN_TOKEN has 6 characters; 16 are needed"}},
		"no app":              {[]string{"-app", ""}, nil, []string{"worker: -app: the application's name has 0 bytes; give it 1 to 128", "try: -app billing"}},
		"every fault at once": {[]string{"-concurrency", "0", "-queues", "a", "-log-level", "x"}, nil,
			[]string{"-concurrency 0", `"a" has no weight`, `-log-level "x"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, with(newFakeSystem()), tt.env, tt.args...)
			r.ends(cli.ExitUsage)
			for _, want := range tt.want {
				if !strings.Contains(r.stderr.String(), want) {
					t.Errorf("stderr lacks %q:\n%s", want, r.stderr.String())
				}
			}
			if r.stdout.String() != "" {
				t.Errorf("stdout: %s", r.stdout.String())
			}
			if token := tt.env[tokenVariable]; token != "" && strings.Contains(r.stderr.String(), token) {
				t.Errorf("stderr tells the token:\n%s", r.stderr.String())
			}
		})
	}
}

// TestStartErrors holds that what cannot start says why and what to try, ends
// with 1 and leaves stdout alone.
func TestStartErrors(t *testing.T) {
	t.Parallel()
	good := limitsFile(t, someLimits)
	bad := limitsFile(t, "limits:\n  payments:\n    rules:\n      - {name: a, algorithm: fast, limit: -1, per: 1s}\n")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	busy := taken.Addr().String()
	inUse := with(newFakeSystem())
	inUse.embeddedAddr = busy
	failing := newFakeSystem()
	failing.err = errors.New("no engine")
	damaged := redistest.NewServer(t)
	must(t, damaged.Client(t).HSet(t.Context(), "hw:limits", "version", "x").Err())

	for name, tt := range map[string]struct {
		p    program
		args []string
		want []string
	}{
		"no limits": {with(newFakeSystem()), nil, []string{"worker: there are no limits", "try: worker -limits limits.yaml"}},
		"no file":   {with(newFakeSystem()), []string{"-limits", "/nowhere/l.yaml"}, []string{"worker: there is no limits file /nowhere/l.yaml"}},
		"bad file": {with(newFakeSystem()), []string{"-limits", bad}, []string{
			"worker: " + bad + ":4:", "limit", "try: correct these lines"}},
		"redis down":      {with(newFakeSystem()), []string{"-limits", good, "-redis", "redis://:geheim@127.0.0.1:1"}, []string{"worker: nothing listens at 127.0.0.1:1", "try: start it"}},
		"bad URL":         {with(newFakeSystem()), []string{"-limits", good, "-redis", "localhost"}, []string{"worker: the Redis URL has no scheme"}},
		"embedded in use": {inUse, []string{"-limits", good}, []string{"worker: the embedded Redis cannot listen on " + busy + ": the port is in use", "try: another worker? stop it"}},
		"-listen in use":  {with(newFakeSystem()), []string{"-limits", good, "-listen", busy}, []string{"worker: -listen cannot listen on " + busy + ": the port is in use", "try: "}},
		"system fails":    {with(failing), []string{"-limits", good}, []string{"worker: no engine"}},
		"damaged policy":  {with(newFakeSystem()), []string{"-redis", "redis://" + damaged.Addr()}, []string{"worker: the limits in Redis are damaged: its version is", "try: the newest version of this program"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, tt.p, nil, tt.args...)
			code := cli.ExitFailed
			if name == "bad URL" {
				code = cli.ExitUsage // it was typed wrong
			}
			r.ends(code)
			for _, want := range tt.want {
				if !strings.Contains(r.stderr.String(), want) {
					t.Errorf("stderr lacks %q:\n%s", want, r.stderr.String())
				}
			}
			if r.stdout.String() != "" {
				t.Errorf("stdout: %s", r.stdout.String())
			}
			if strings.Contains(r.stderr.String(), "geheim") {
				t.Errorf("stderr tells the password:\n%s", r.stderr.String())
			}
		})
	}
}

// TestStartsAndStops holds that the first signal lets running tasks end, and
// that the program then exits 0 with an empty stdout.
func TestStartsAndStops(t *testing.T) {
	t.Parallel()
	f := newFakeSystem()
	f.drained = make(chan struct{})
	r := start(t, with(f), nil, "-limits", limitsFile(t, someLimits), "-listen", "127.0.0.1:0", "-queues", "low=1,high=6")
	r.says("msg=ready queues=\"high=6,low=1\" concurrency=32")
	if !strings.Contains(r.stderr.String(), "nothing is kept on disk, and all tasks are lost") {
		t.Errorf("no warning of the embedded server:\n%s", r.stderr.String())
	}
	base := "http://" + regexp.MustCompile(`msg=listening addr=(\S+)`).FindStringSubmatch(r.stderr.String())[1]
	if a := getHealth(t, base, http.StatusOK); a.Status != "ok" || a.Redis != "ok" || a.Concurrency != 32 || a.Queues["high"] != 6 {
		t.Errorf("health %+v", a)
	}
	if page := get(t, base+"/metrics", http.StatusOK); !strings.Contains(page, "headway_redis_up 1") {
		t.Errorf("metrics:\n%s", page)
	}
	r.stop()
	r.says("msg=\"stopping: no new tasks")
	if a := getHealth(t, base, http.StatusServiceUnavailable); a.Status != "stopping" {
		t.Errorf("health %+v", a)
	}
	select {
	case code := <-r.code:
		t.Fatalf("ended with %d before the running tasks had", code)
	default:
	}
	close(f.drained)
	r.ends(cli.ExitOK)
	if r.stdout.String() != "" {
		t.Errorf("stdout: %s", r.stdout.String())
	}
}

func get(t *testing.T, url string, want int) string {
	t.Helper()
	resp, err := http.Get(url)
	must(t, err)
	defer func() { _ = resp.Body.Close() }()
	var b bytes.Buffer
	if _, err := b.ReadFrom(resp.Body); err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != want {
		t.Errorf("%s: status %d, want %d: %s", url, resp.StatusCode, want, b.String())
	}
	return b.String()
}

func getHealth(t *testing.T, base string, want int) (a healthAnswer) {
	t.Helper()
	must(t, json.Unmarshal([]byte(get(t, base+"/healthz", want)), &a))
	return a
}

func TestManyQueues(t *testing.T) {
	t.Parallel()
	var names []string
	for i := range manyQueues + 1 {
		names = append(names, "q"+string(rune('a'+i))+"=1")
	}
	r := start(t, with(newFakeSystem()), nil, "-limits", limitsFile(t, someLimits), "-queues", strings.Join(names, ","))
	r.says("msg=ready")
	if !strings.Contains(r.stderr.String(), "level=WARN msg=\"many queues") {
		t.Errorf("no warning:\n%s", r.stderr.String())
	}
	r.stop()
	r.ends(cli.ExitOK)
}

func TestJSONLog(t *testing.T) {
	t.Parallel()
	r := start(t, with(newFakeSystem()), nil, "-limits", limitsFile(t, someLimits), "-log-format", "json", "-log-level", "debug")
	r.says(`"msg":"ready"`)
	r.stop()
	r.ends(cli.ExitOK)
	for line := range strings.Lines(r.stderr.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %s", line)
		}
	}
}
