package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/cmd/internal/schemas"
)

// A worker is set up by the environment alone: every flag has its variable, and the command
// line wins.
func TestWorkerEnvironment(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"HEADWAY_REDIS": ownRedis(t), "HEADWAY_LIMITS": limitsFile(t, someLimits), "HEADWAY_QUEUES": "low=1,high=6", "HEADWAY_CONCURRENCY": "7",
		"HEADWAY_LOG_FORMAT": "json", "HEADWAY_USAGE": "false", "HEADWAY_ALLOW_HOST": "localhost:1, localhost:2",
	}
	r := start(t, with(newFakeSystem()), env)
	r.says(`"msg":"ready","queues":"high=6,low=1","concurrency":7`)
	r.stop()
	r.ends(cli.ExitOK)
	if strings.Contains(r.stderr.String(), "unknown environment variable") {
		t.Errorf("warns of known variables:\n%s", r.stderr.String())
	}
	r = start(t, with(newFakeSystem()), env, "-concurrency", "8", "-log-format", "text")
	r.says(`msg=ready queues="high=6,low=1" concurrency=8`)
	r.stop()
	r.ends(cli.ExitOK)
}

// What is set for a whole machine says where a command works and how it prints. It changes no
// limit, and a flag that a verb does not take is no fault there.
func TestLimitsEnvironment(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	env := map[string]string{
		"HEADWAY_REDIS": l.url, "HEADWAY_AS": "carla", "HEADWAY_JSON": "true",
		"HEADWAY_PER": "1h", "HEADWAY_LIMIT": "1", "HEADWAY_FOR": "1s", "HEADWAY_IF_VERSION": "99", "HEADWAY_FORCE": "true", "HEADWAY_REPLACE": "true", "HEADWAY_TIMEOUT": "x",
	}
	limits := func(code int, args ...string) string {
		t.Helper()
		var out, errs bytes.Buffer
		if got := run(t.Context(), append([]string{"limits"}, args...), func(name string) string { return env[name] }, &out, &errs); got != code {
			t.Fatalf("%q: exit %d: %s", args, got, errs.String())
		}
		return out.String() + errs.String()
	}
	says(t, limits(0, "set", "payments/acme", "tenant", "limit=100"), `"by":"carla"`, `"rules":1`)
	says(t, limits(0, "show", "payments/acme"), `limit: 100, per: 1s, burst: 5}","from":"set","created_by":"carla"`, `!"until"`)
	says(t, limits(0, "list"), `"rule":"account"`)
	says(t, limits(0, "check", limitsFile(t, liveLimits)), "!does not go with")
	says(t, limits(1, "pause", "shop"), "the limits do not name shop")
	says(t, limits(0, "set", "-as", "dora", "-json=false", "payments/acme", "tenant", "limit=101"), "by dora (user")
}

// No help and no fault shows what a variable holds of a Redis URL.
func TestVariablesStaySecret(t *testing.T) {
	t.Parallel()
	root, _ := newWorker()
	env := map[string]string{"HEADWAY_REDIS": "redis://anna:geheim@127.0.0.1:1/0"}
	faulty := map[string]string{"HEADWAY_REDIS": "redis//anna:geheim@127.0.0.1:1/0 x", "HEADWAY_JSON": "maybe"}
	for _, c := range root.All() {
		words := strings.Fields(c.Name)[1:]
		for _, args := range [][]string{append(words, "-h"), append(words, "-no-flag"), words, append(words, "scope", "p"), append(words, "list")} {
			for _, env := range []map[string]string{env, faulty} {
				env = maps.Clone(env)
				env["HEADWAY_LIMITS"] = limitsFile(t, someLimits)
				var out, errs bytes.Buffer
				p := with(newFakeSystem())
				p.environ = os.Environ()
				p.run(t.Context(), args, func(name string) string { return env[name] }, &out, &errs)
				says(t, out.String()+errs.String(), "!geheim")
			}
		}
	}
}

func TestParseQueues(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]map[string]int{
		"default=1":                {"default": 1},
		"critical=6,default=3,l=1": {"critical": 6, "default": 3, "l": 1},
	} {
		got, err := parseQueues(in)
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%q: got %v, %v, want %v", in, got, err, want)
		}
	}
	for in, want := range map[string][]string{
		"":                              {"an empty entry"},
		"a":                             {`"a" has no weight`},
		"=1":                            {`"" is not a queue name`},
		"ä=1":                           {`"ä" is not a queue name`},
		"a=0":                           {`the weight of "a" is "0"`},
		"a=1001":                        {`the weight of "a" is "1001", not a whole number from 1 to 1000`},
		"a=1=2":                         {`the weight of "a" is "1=2"`},
		"a=1,b=1,a=2":                   {`names "a" twice`},
		"a,b=0,c=1,c=1,d d=1":           {`"a" has no weight`, `the weight of "b"`, `names "c" twice`, `"d d" is not a queue name`},
		strings.Repeat("q", 129) + "=1": {"1 to 128 letters"},
	} {
		_, err := parseQueues(in)
		if err == nil {
			t.Errorf("%q: no error", in)
			continue
		}
		for _, w := range want {
			if !strings.Contains(err.Error(), w) || !strings.Contains(err.Error(), "try: -queues") {
				t.Errorf("%q: got %v, want %q", in, err, w)
			}
		}
	}
}

// The schemas beside the pages are those that the program prints.
func TestSchema(t *testing.T) {
	t.Parallel()
	for _, name := range schemas.Names {
		got, _ := ask(t, cli.ExitOK, "schema", name)
		golden(t, filepath.Join("..", "..", "docs", name+".schema.json"), got)
	}
	got, _ := ask(t, cli.ExitOK, "schema", "-h")
	golden(t, filepath.Join("testdata", "schema.golden"), got)
	for _, args := range []string{"schema", "schema tasks", "schema limits schedules", "schema -json limits"} {
		_, errs := ask(t, cli.ExitUsage, strings.Fields(args)...)
		says(t, errs, "try: ")
	}
}

// A faulty value is told by the name of its variable, where there is one, and an unknown
// variable by a warning that does not show its value.
func TestWorkerVariableFaults(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		env  map[string]string
		code int
		want []string
	}{
		"out of bounds": {map[string]string{"HEADWAY_CONCURRENCY": "0"}, cli.ExitUsage, []string{"worker: HEADWAY_CONCURRENCY 0 is not from 1 to 10000", "try: HEADWAY_CONCURRENCY=32", "!-concurrency"}},
		"two":           {map[string]string{"HEADWAY_LOG_LEVEL": "loud", "HEADWAY_DENY_CIDR": "10.1.2.3/8"}, cli.ExitUsage, []string{`HEADWAY_LOG_LEVEL "loud" is unknown`, "HEADWAY_DENY_CIDR: deny CIDR"}},
		"no file":       {map[string]string{"HEADWAY_LIMITS": "/nowhere"}, cli.ExitFailed, []string{"there is no limits file /nowhere", "try: ls /"}},
		"no URL":        {map[string]string{"HEADWAY_REDIS": "x:geheim@y", "HEADWAY_LIMITS": limitsFile(t, someLimits)}, cli.ExitUsage, []string{"the Redis URL has no scheme", "try: HEADWAY_REDIS=redis://"}},
		"typo": {map[string]string{"HEADWAY_CONCURENCY": "geheim", "HEADWAY_LIMITS": "/nowhere"}, cli.ExitFailed,
			[]string{`level=WARN msg="unknown environment variable: no flag has this name" variable=HEADWAY_CONCURENCY did_you_mean=HEADWAY_CONCURRENCY`}},
		"of others": {map[string]string{"HEADWAY_AS": "a", "HEADWAY_WITHIN": "a", "HEADWAY_LISTEN_TOKEN": "geheim", "HEADWAY_LIMITS": "/nowhere"}, cli.ExitFailed,
			[]string{"!unknown environment variable"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, with(newFakeSystem()), tt.env)
			r.refuses(tt.code, append(tt.want, "!geheim")...)
		})
	}
}
