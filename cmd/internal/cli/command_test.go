package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

// sample is a program with flags of each kind, what they read, and a subcommand with a group below it.
type sample struct {
	root    *cobra.Command
	words   []string
	n       int
	redis   string
	json    bool
	level   string
	methods []string
	ports   []int
	wait    time.Duration
	at      time.Time
	err     error // of each command
}

func newSample() *sample {
	s := &sample{}
	run := func(c *cobra.Command, words []string) error {
		s.words = append([]string{c.Name()}, words...)
		_, _ = io.WriteString(c.OutOrStdout(), "ran\n")
		return s.err
	}
	s.root = &cobra.Command{Use: "p", Version: "v1", Args: Args(0, 0), RunE: run}
	get := &cobra.Command{Use: "get NAME [AT]", Short: "Get it", Args: Args(1, 2), RunE: run}
	for _, c := range []*cobra.Command{s.root, get} {
		fs := c.Flags()
		fs.IntVar(&s.n, "n", 7, "how many, `N`")
		RedisFlag(c, &s.redis)
		ChoiceVar(c, &s.level, "level", "info", "the `LEVEL`", "info", "debug")
		fs.StringArrayVar(&s.methods, "allow-method", nil, "a `METHOD`")
		fs.IntSliceVar(&s.ports, "ports", nil, "some `PORTS`")
		TimeVar(fs, &s.at, "at", "when, a `TIME`")
		DurationVar(fs, &s.wait, "wait", time.Second, "how long")
	}
	group := Group("of", "Group of them", get)
	group.PersistentFlags().BoolVar(&s.json, "json", false, "print objects")
	s.root.AddCommand(group)
	return s
}

// run runs the program in an environment of NAME=VALUE, and returns its code and what it printed.
func (s *sample) run(env []string, args ...string) (code int, stdout, stderr string) {
	getenv := func(name string) string {
		for _, setting := range env {
			if value, is := strings.CutPrefix(setting, name+"="); is {
				return value
			}
		}
		return ""
	}
	var out, errs bytes.Buffer
	code = Execute(s.root.Context(), s.root, args, getenv, &out, &errs)
	return code, out.String(), errs.String()
}

func (s *sample) on(t *testing.T) *sample {
	t.Helper()
	s.root.SetContext(t.Context())
	return s
}

// -name is --name; what is no flag stays as it was typed.
func TestLongFlags(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]string{
		"":                            "",
		"-json of get a -n 3":         "--json of get a --n=3",
		"of -n -3 get -json=false a":  "of --n=-3 get --json=false a",
		"-redis=redis://a --redis b":  "--redis=redis://a --redis=b",
		"-level -debug -allow-method": "--level=-debug --allow-method",
		"-allow-method A -allow-method -- -wait --": "--allow-method=A --allow-method=-- --wait=--",
		"of get - -5 -json -- -n 3 -json":           "of get - -5 --json -- -n 3 -json",
		"-h -v -help -version -x -limts":            "-h -v --help --version -x --limts",
		"__complete of -js":                         "__complete of -js",
	} {
		if got := strings.Join(longFlags(newSample().root, strings.Fields(typed)), " "); got != want {
			t.Errorf("%q: %q, want %q", typed, got, want)
		}
	}
}

func TestExecute(t *testing.T) {
	t.Parallel()
	const ran = "ran\n"
	for line, want := range map[string]struct {
		code           int
		stdout, stderr string
		err            error
	}{
		"-n 3":                             {stdout: ran},
		"of get a --n=4 b":                 {stdout: ran},
		"of -json get -- -n":               {stdout: ran},
		"-version":                         {stdout: "p v1\n"},
		"-x":                               {code: ExitUsage, stderr: "p: unknown flag -x\ntry: p -h\n"},
		"of get a -waitt 1s":               {code: ExitUsage, stderr: "p of get: unknown flag -waitt; did you mean -wait?\ntry: p of get -h\n"},
		"-n":                               {code: ExitUsage, stderr: "p: flag -n needs a value\ntry: p -h\n"},
		"-n x":                             {code: ExitUsage, stderr: "p: invalid value \"x\" for flag -n: must be an integer\ntry: p -h\n"},
		"-wait 1x":                         {code: ExitUsage, stderr: "p: invalid value \"1x\" for flag -wait: \"1x\" is no duration, such as 500ms, 90s, 24h or 30d\ntry: p -h\n"},
		"-at 2030-01-31T12:00:00Z -wait 0": {stdout: ran},
		"-at noon":                         {code: ExitUsage, stderr: "p: invalid value \"noon\" for flag -at: not an RFC 3339 time, such as 2030-01-31T12:00:00Z\ntry: p -h\n"},
		"of":                               {code: ExitUsage, stderr: "p of: no command given: get\ntry: p of -h\n"},
		"fo":                               {code: ExitUsage, stderr: "p: unknown command \"fo\"; did you mean of?\ntry: p -h\n"},
		"of gte a":                         {code: ExitUsage, stderr: "p of: unknown command \"gte\"; did you mean get?\ntry: p of -h\n"},
		"of get":                           {code: ExitUsage, stderr: "p of get: an argument is missing: write NAME [AT]\ntry: p of get -h\n"},
		"of get a b c":                     {code: ExitUsage, stderr: "p of get: unexpected argument \"c\": write NAME [AT]\ntry: p of get -h\n"},
		"of get failed":                    {code: ExitFailed, stdout: ran, stderr: "p of get: broken\n", err: errors.New("broken")},
		"of get printed":                   {code: ExitFailed, stdout: ran, err: ErrPrinted},
		"of get usage":                     {code: ExitUsage, stdout: ran, stderr: "p of get: broken\ntry: this\n", err: Usage(Errorf("this", "broken"))},
		"of get -n 3 not-typed":            {code: ExitFailed, stdout: ran, stderr: "p of get: -n is odd\n", err: errors.New("-n is odd")},
	} {
		s := newSample().on(t)
		s.err = want.err
		code, stdout, stderr := s.run(nil, strings.Fields(line)...)
		if code != want.code || stdout != want.stdout || stderr != want.stderr {
			t.Errorf("%s: %d %q %q", line, code, stdout, stderr)
		}
	}
	if code := Execute(t.Context(), newSample().root, []string{"-h"}, func(string) string { return "" }, failing{}, io.Discard); code != ExitFailed {
		t.Errorf("lost results are code %d", code)
	}
}

// A signal is code 130, and a command says what it means unless it has nothing to say.
func TestExecuteInterrupted(t *testing.T) {
	t.Parallel()
	for _, s := range []struct {
		err  error
		want string
	}{{context.Canceled, ""}, {errors.New("half is done"), "p: half is done\n"}} {
		sample := newSample()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		sample.root.SetContext(ctx)
		sample.err = s.err
		if code, _, stderr := sample.run(nil); code != ExitInterrupted || stderr != s.want {
			t.Errorf("%v: %d %q", s.err, code, stderr)
		}
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("full") }

// The help goes to stdout, has each flag with its variable, and is no wider than a terminal.
func TestHelp(t *testing.T) {
	t.Parallel()
	for args, parts := range map[string][]string{
		"-h":        {"p of", "--allow-method METHOD", "[HEADWAY_ALLOW_METHOD]", "[HEADWAY_N]", "[HEADWAY_REDIS]", "(default 7)"},
		"of get -h": {"p of get NAME [AT]", "[HEADWAY_ALLOW_METHOD]", "[HEADWAY_JSON]"},
	} {
		code, stdout, stderr := newSample().on(t).run([]string{"HEADWAY_N=x"}, strings.Fields(args)...)
		for _, part := range parts {
			if code != ExitOK || stderr != "" || !strings.Contains(stdout, part) {
				t.Errorf("%s: %d %q %s", args, code, stderr, stdout)
			}
		}
		if args != "-h" && strings.Contains(stdout, "HEADWAY_N]") {
			t.Errorf("a command reads what it does from the environment:\n%s", stdout)
		}
	}
}

// "The command line wins", and a variable is read where a flag is not given.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	env := []string{
		"HEADWAY_N=3", "HEADWAY_REDIS= redis://a ", "REDIS_URL=redis://b", "HEADWAY_JSON=true", "HEADWAY_LEVEL=debug", "HEADWAY_PORTS=80, 443",
		"HEADWAY_ALLOW_METHOD=PURGE, PROPFIND", "HEADWAY_WAIT=2m", "HEADWAY_VERSION=x", "HEADWAY_HELP=x",
	}
	run := func(env []string, args ...string) *sample {
		s := newSample().on(t)
		if code, _, stderr := s.run(env, args...); code != ExitOK {
			t.Fatalf("%q: %s", args, stderr)
		}
		return s
	}
	s := run(env)
	if s.n != 3 || s.redis != "redis://a" || s.level != "debug" || !slices.Equal(s.methods, []string{"PURGE", "PROPFIND"}) || !slices.Equal(s.ports, []int{80, 443}) || s.wait != 2*time.Minute {
		t.Errorf("a service reads %+v", s)
	}
	s = run(env, "-n", "4", "-redis", "redis://c", "-level", "info", "-allow-method", "MKCOL", "-wait", "3m")
	if s.n != 4 || s.redis != "redis://c" || s.level != "info" || !slices.Equal(s.methods, []string{"MKCOL"}) || s.wait != 3*time.Minute {
		t.Errorf("the command line does not win: %+v", s)
	}
	s = run(env, "of", "get", "a")
	if s.n != 7 || s.level != "info" || s.wait != time.Second {
		t.Errorf("a command that does one thing reads what it does from the environment: %+v", s)
	}
	if s.redis != "redis://a" || !s.json || len(s.methods) != 2 {
		t.Errorf("a command that does one thing does not read where and how: %+v", s)
	}
	for want, s := range map[string]*sample{
		"redis://b": run([]string{"REDIS_URL=redis://b "}),
		"":          run([]string{"REDIS_URL= ", "HEADWAY_REDIS="}),
		"redis://d": run([]string{"REDIS_URL=redis://d"}, "-redis", ""),
	} {
		if s.redis != want {
			t.Errorf("redis %q, want %q", s.redis, want)
		}
	}
}

// What is wrong with a value names its variable.
func TestFaultsNameVariables(t *testing.T) {
	t.Parallel()
	for variable, want := range map[string]string{
		"HEADWAY_N=x":           "p: invalid value \"x\" for HEADWAY_N: must be an integer\ntry: p -h\n",
		"HEADWAY_PORTS=80,x":    "p: invalid value \"80,x\" for HEADWAY_PORTS: strconv.Atoi: parsing \"x\": invalid syntax\ntry: p -h\n",
		"HEADWAY_LEVEL=loud":    "p: -level loud is unknown\ntry: -level info\np: -level was read from HEADWAY_LEVEL\n",
		"REDIS_URL=redis://x":   "p: -level loud is unknown\ntry: -level info\n",
		"HEADWAY_LEVELS=redis:": "p: -level loud is unknown\ntry: -level info\n",
	} {
		s := newSample().on(t)
		s.err = Usage(Errorf("-level info", "-level loud is unknown"))
		if code, _, stderr := s.run([]string{variable}); code != ExitUsage || stderr != want {
			t.Errorf("%s: %d %q", variable, code, stderr)
		}
	}
}

// A typo in a variable does not go unseen; what Kubernetes sets for a Service is none.
func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	got := UnknownVariables(newSample().root, []string{
		"HEADWAY_LEVELL=x", "HEADWAY_N=1", "HEADWAY_WITHIN=a", "HEADWAY_TOKEN=s", "PATH=/bin", "HEADWAY_QUIET_PLEASE=1", "HEADWAY_REDIS=r", "XHEADWAY_A=1",
		"HEADWAY_REDIS_SERVICE_HOST=10.0.0.1", "HEADWAY_REDIS_SERVICE_PORT_REDIS=6379", "HEADWAY_PORT=tcp://10.0.0.1:80",
		"HEADWAY_REDIS_PORT_6379_TCP=tcp://10.0.0.1:6379", "HEADWAY_REDIS_PORT_6379_TCP_ADDR=10.0.0.1",
	}, "HEADWAY_TOKEN")
	if want := [][2]string{{"HEADWAY_LEVELL", "HEADWAY_LEVEL"}, {"HEADWAY_QUIET_PLEASE", ""}}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
