package cli

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
)

const sampleUsage = `Usage: p [flags]

Flags:
  -n N              how many
  -redis URL        where. Default: REDIS_URL from the environment
  -json             print objects, and many words so that the line is filled
  -allow-method M   may be given more than once,
                    in two lines
  -h                print this

Example:
  p -n 1
`

// sample is a command with flags of each kind, and what they read.
type sample struct {
	*Command
	n       int
	redis   string
	json    bool
	level   string
	limits  string
	methods []string
	wait    time.Duration
}

func newSample(service bool) *sample {
	s := &sample{Command: NewCommand("p", sampleUsage)}
	s.Service = service
	s.Flags.IntVar(&s.n, "n", 7, "")
	s.Flags.StringVar(&s.redis, "redis", "", "")
	s.Flags.BoolVar(&s.json, "json", false, "")
	ChoiceVar(s.Flags, &s.level, "level", "info", "info", "debug")
	FileVar(s.Flags, &s.limits, "limits")
	AllowMethodFlag(s.Flags, &s.methods)
	s.Flags.DurationVar(&s.wait, "wait", time.Second, "")
	return s
}

func environment(settings ...string) func(string) string {
	return func(name string) string {
		for _, s := range settings {
			if value, found := strings.CutPrefix(s, name+"="); found {
				return value
			}
		}
		return ""
	}
}

func TestCommandParse(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		args           []string
		env            string
		mixed          bool
		code           int
		done           bool
		words          []string
		stdout, stderr string
	}{
		"good":            {args: []string{"-n", "3", "a", "-n", "4"}, words: []string{"a", "-n", "4"}},
		"mixed":           {args: []string{"a", "-n", "3", "b", "--", "-c"}, mixed: true, words: []string{"a", "b", "-c"}},
		"help":            {args: []string{"-h"}, done: true, stdout: newSample(true).Help()},
		"--help":          {args: []string{"--help"}, done: true, stdout: newSample(true).Help()},
		"unknown":         {args: []string{"-x"}, code: ExitUsage, done: true, stderr: "p: flag provided but not defined: -x\ntry: p -h\n"},
		"value":           {args: []string{"-n", "x"}, code: ExitUsage, done: true, stderr: "p: invalid value \"x\" for flag -n: parse error\ntry: p -h\n"},
		"variable":        {env: "HEADWAY_N=x", code: ExitUsage, done: true, stderr: "p: invalid value \"x\" for HEADWAY_N: parse error\ntry: p -h\n"},
		"bool variable":   {env: "HEADWAY_JSON=yes", code: ExitUsage, done: true, stderr: "p: invalid value \"yes\" for HEADWAY_JSON: parse error\ntry: HEADWAY_JSON=true or HEADWAY_JSON=false\n"},
		"list variable":   {env: "HEADWAY_ALLOW_METHOD=PURGE,CONNECT", code: ExitUsage, done: true, stderr: "p: invalid value \"PURGE,CONNECT\" for HEADWAY_ALLOW_METHOD: a method that opens a tunnel and is not a request\ntry: p -h\n"},
		"not looked at":   {args: []string{"-n", "3"}, env: "HEADWAY_N=x"},
		"help before all": {args: []string{"-h"}, env: "HEADWAY_N=x", done: true, stdout: newSample(true).Help()},
	} {
		s := newSample(true)
		s.Mixed = tt.mixed
		var stdout, stderr bytes.Buffer
		words, code, done := s.Parse(tt.args, environment(tt.env), &stdout, &stderr)
		if code != tt.code || done != tt.done || !slices.Equal(words, tt.words) || stdout.String() != tt.stdout || stderr.String() != tt.stderr {
			t.Errorf("%s: %q %d %v %q %q", name, words, code, done, stdout.String(), stderr.String())
		}
	}
}

// "The command line wins", and a variable is read where a flag is not given.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	env := environment("HEADWAY_N=3", "HEADWAY_REDIS= redis://a ", "REDIS_URL=redis://b", "HEADWAY_JSON=true", "HEADWAY_LEVEL=debug",
		"HEADWAY_LIMITS=l.yaml", "HEADWAY_ALLOW_METHOD=PURGE, PROPFIND", "HEADWAY_WAIT=2m")
	parse := func(service bool, getenv func(string) string, args ...string) *sample {
		s := newSample(service)
		var stdout, stderr bytes.Buffer
		if _, _, done := s.Parse(args, getenv, &stdout, &stderr); done {
			t.Fatalf("%q: %s", args, stderr.String())
		}
		return s
	}

	s := parse(true, env)
	if s.n != 3 || s.redis != "redis://a" || !s.json || s.level != "debug" || s.limits != "l.yaml" || !slices.Equal(s.methods, []string{"PURGE", "PROPFIND"}) || s.wait != 2*time.Minute {
		t.Errorf("a service reads %+v", s)
	}
	if s.Flags.NFlag() != 0 {
		t.Error("what the environment says counts as typed")
	}
	s = parse(true, env, "-n", "4", "-redis", "redis://c", "-json=false", "-level", "info", "-limits", "", "-allow-method", "MKCOL", "-wait", "3m")
	if s.n != 4 || s.redis != "redis://c" || s.json || s.level != "info" || s.limits != "" || !slices.Equal(s.methods, []string{"MKCOL"}) || s.wait != 3*time.Minute {
		t.Errorf("the command line does not win: %+v", s)
	}
	s = parse(false, env)
	if s.n != 7 || s.level != "info" || s.wait != time.Second {
		t.Errorf("a command that does one thing reads what it does from the environment: %+v", s)
	}
	if s.redis != "redis://a" || !s.json || s.limits != "l.yaml" || len(s.methods) != 2 {
		t.Errorf("a command that does one thing does not read where and how: %+v", s)
	}
	for want, s := range map[string]*sample{
		"redis://b": parse(false, environment("REDIS_URL=redis://b ")),
		"":          parse(false, environment("REDIS_URL= ", "HEADWAY_REDIS=")),
		"redis://d": parse(false, environment("REDIS_URL=redis://d"), "-redis", ""),
	} {
		if s.redis != want {
			t.Errorf("redis %q, want %q", s.redis, want)
		}
	}
}

// What is wrong with a value is told by the name of its variable.
func TestFailNamesVariables(t *testing.T) {
	t.Parallel()
	s := newSample(true)
	if _, _, done := s.Parse([]string{"-n", "0"}, environment("HEADWAY_LEVEL=loud", "REDIS_URL=redis://h"), nil, nil); done {
		t.Fatal("refused")
	}
	for text, want := range map[string]string{
		"-level loud is unknown":                  "p: HEADWAY_LEVEL loud is unknown\n",
		"-level: loud (-level info)":              "p: HEADWAY_LEVEL: loud (HEADWAY_LEVEL info)\n",
		"-n 0, or -levels or a-level or -level-2": "p: -n 0, or -levels or a-level or -level-2\n",
		"no password":                             "p: no password\n",
	} {
		var got bytes.Buffer
		s.Fail(&got, "p", errors.New(text))
		if got.String() != want {
			t.Errorf("got %q, want %q", got.String(), want)
		}
	}
	var got bytes.Buffer
	s.Fail(&got, "p", errors.Join(Errorf("-level info or -level debug", "-level is odd"), Errorf("-redis redis://h, or -n 1", "no Redis")))
	if want := "p: HEADWAY_LEVEL is odd\ntry: HEADWAY_LEVEL=info or HEADWAY_LEVEL=debug\np: no Redis\ntry: REDIS_URL=redis://h, or -n 1\n"; got.String() != want {
		t.Errorf("got %q, want %q", got.String(), want)
	}
}

// A typo in a variable does not go unseen; what Kubernetes sets for a Service is none.
func TestUnknownVariables(t *testing.T) {
	t.Parallel()
	s := newSample(true)
	got := UnknownVariables([]string{
		"HEADWAY_LEVELL=x", "HEADWAY_N=1", "HEADWAY_WITHIN=a", "HEADWAY_TOKEN=s", "PATH=/bin", "HEADWAY_QUIET_PLEASE=1", "HEADWAY_REDIS=r", "XHEADWAY_A=1",
		"HEADWAY_REDIS_SERVICE_HOST=10.0.0.1", "HEADWAY_REDIS_SERVICE_PORT=6379", "HEADWAY_REDIS_SERVICE_PORT_REDIS=6379", "HEADWAY_PORT=tcp://10.0.0.1:80",
		"HEADWAY_REDIS_PORT_6379_TCP=tcp://10.0.0.1:6379", "HEADWAY_REDIS_PORT_6379_TCP_ADDR=10.0.0.1", "HEADWAY_REDIS_PORT_6379_UDP_PROTO=udp",
	}, append(KnownVariables(s.Command), "HEADWAY_TOKEN"))
	if want := []UnknownVariable{{"HEADWAY_LEVELL", "HEADWAY_LEVEL"}, {"HEADWAY_QUIET_PLEASE", ""}}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
