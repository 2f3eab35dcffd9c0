package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/headway-go/headway/cmd/internal/cli"
)

func TestHelp(t *testing.T) {
	t.Parallel()
	for args, part := range map[string]string{
		"-h": "--allow-host HOST[:PORT]", "help": "worker [flags]", "limits -h": "worker limits COMMAND", "limits set --help": "--if-version N", "health -help": "--live",
		"inspect scope p -h": "--limit N", "completion bash": "__start_worker", "completion zsh": "#compdef worker", "completion fish": "complete -c worker",
	} {
		help, errs := ask(t, cli.ExitOK, strings.Fields(args)...)
		says(t, help, part)
		says(t, errs, "!worker")
	}
	if version, errs := ask(t, cli.ExitOK, "-version"); version != "worker "+cli.Version()+"\n" || errs != "" {
		t.Errorf("%s%s", version, errs)
	}
	offers, _ := ask(t, cli.ExitOK, "__complete", "--patience", "")
	says(t, offers, "wait\n", "move=\n")
}

// TestUsageErrors holds that bad usage is exit code 2, an empty stdout, and for each fault what is wrong and what to try, by the name of
// the variable where the fault is in one, and without what may be secret. A variable that no flag has is warned of.
func TestUsageErrors(t *testing.T) {
	t.Parallel()
	long := filepath.Join(t.TempDir(), "long")
	must(t, os.WriteFile(long, make([]byte, mostSecret+1), 0o600))
	limits := "HEADWAY_LIMITS=" + limitsFile(t, someLimits) + " "
	const tokens, secrets = tokenVariable + "=0123456789abcdef ", secretVariable + "=0123456789abcdef-of-the-test "
	for line, want := range map[string][]string{
		"-x":                                         {"worker: unknown flag -x", "try: worker -h"},
		"limits":                                     {"no command given: assign, check, close, diff"},
		"limits list -as anna":                       {"unknown flag -as"},
		"limits resume p -for 1h":                    {"unknown flag -for"},
		"limits drain p -timeout 0s":                 {"-timeout 0s is not above 0"},
		"limits set p r limit=1 -for 0":              {"-for 0s is not above 0"},
		"limits set p r x=1 -if-version -1":          {"-if-version -1 is not a version"},
		"limits rollback x":                          {`"x" is not a version number`},
		"inspect scope p/*":                          {`"*"`},
		"inspect scope -limit 0":                     {"-limit 0 is not from 1 to 1000"},
		"inspect scope p -redis x://":                {"try: "},
		"serve -listen 0.0.0.0:9092":                 {"worker serve: -listen 0.0.0.0:9092 can be reached by other machines, and -clients does not say", "try: -clients clients.yaml"},
		"serve -tls-cert c.pem":                      {"-tls-cert and -tls-key need each other"},
		"serve -client-ca c.pem":                     {"-client-ca needs -tls-cert and -clients"},
		"serve -app=":                                {"-app: "},
		"serve -listen 9092":                         {`-listen "9092" is not HOST:PORT`},
		"health -listen localhost":                   {`-listen "localhost" is not HOST:PORT`},
		"-concurrency 0":                             {"worker: -concurrency 0 is not from 1 to 10000", "try: -concurrency 32"},
		"-patience hope":                             {`-patience "hope" is unknown`, "try: -patience wait, fail, drop or move=QUEUE"},
		"-patience move=a=b":                         {`-patience: "a=b" is not a queue name`, "try: -patience move=slow"},
		"-queues a=1,b":                              {`-queues: "b" has no weight`, "try: -queues b=1"},
		"-queues a=1,":                               {"an empty entry", "try: -queues"},
		"-queues ä=1":                                {`"ä" is not a queue name`, "try: -queues"},
		"-queues a=1001":                             {`the weight of "a" is "1001", not a whole number from 1 to 1000`, "try: -queues"},
		"-queues a,b=0,c=1,c=1,=1":                   {`"a" has no weight`, `the weight of "b" is "0"`, `names "c" twice`, `"" is not a queue name`, "try: -queues"},
		"-queues " + strings.Repeat("q", 129) + "=1": {"1 to 128 letters"},
		"-log-level loud":                            {`-log-level "loud" is unknown`},
		"-summary -1m":                               {"-summary -1m0s is below 1s", "try: -summary 1m"},
		"-max-timeout 0s":                            {"-max-timeout 0s is not above 0", "try: -max-timeout 10m"},
		"-drain -1s":                                 {"-drain -1s is below 0"},
		"-allow-host http://x/":                      {"worker: -allow-host: ", "try: -allow-host localhost:8080"},
		"-only-host *.example.com": {
			`worker: -only-host: only host "*.example.com": has no wildcards; name each host`, "try: -only-host api.example.com",
		},
		"-deny-cidr 10.1.2.3/8": {
			`worker: -deny-cidr: deny CIDR "10.1.2.3/8": has bits beyond its length; write 10.0.0.0/8`, "try: -deny-cidr 10.0.0.0/8",
		},
		"-ports 80,0":                           {"worker: -ports: port 0 is not between 1 and 65535", "try: -ports 80,443"},
		"-allow-method CONNECT":                 {`-allow-method: allow method "CONNECT": a method that opens a tunnel`, "try: -allow-method PROPFIND"},
		"-app=":                                 {"worker: -app: the application's name has 0 bytes; give it 1 to 128", "try: -app billing"},
		"-concurrency 0 -queues a -log-level x": {"-concurrency 0", `"a" has no weight`, `-log-level "x"`},

		"-listen 9090":      {`-listen "9090" is not HOST:PORT`, "try: -listen :9090"},
		"-listen :http":     {"the port is not a number"},
		"-listen :65536":    {"the port is not a number"},
		"-listen 0.0.0.0:1": {"can be reached by other machines, and HEADWAY_LISTEN_TOKEN is not set"},
		"-listen :9090 HEADWAY_LISTEN_TOKEN=geheim":       {"HEADWAY_LISTEN_TOKEN has 6 characters; 16 are needed"},
		"-listen :9090 HEADWAY_LISTEN_TOKEN=" + token[1:]: {"has 15 characters; 16 are needed"},
		"-page": {"-page needs -listen"},
		"-page -listen 0.0.0.0:0": {
			"is not set\ntry: HEADWAY_LISTEN_TOKEN=$(openssl rand -hex 16) worker …, or -listen :0 for this machine only\n",
		},
		"-page-users users.yaml":           {"-page-users needs -page"},
		tokens + "-page -listen 0.0.0.0:0": {"-page-users does not say who may"},
		tokens + "-page -listen :0":        {"HEADWAY_LISTEN_TOKEN is set"},
		"page -listen 0.0.0.0:0":           {"can be reached by other machines, and neither -users nor -proxy"},
		"page -listen nowhere":             {"is not HOST:PORT"},
		"page -proxy 10.0.0.1":             {"no range of addresses"},
		"page -proxy-admin ops":            {"need -proxy"},
		"page -prefix limits":              {"does not begin with a slash"},

		"-events-webhook https://h/T0KEN":                                       {"HEADWAY_EVENTS_SECRET is not set"},
		"-events-secret-file " + long:                                           {"-events-secret-file is given without"},
		"-events-webhook https://h/T0KEN HEADWAY_EVENTS_SECRET=short":           {"the secret of -events-webhook has 5 characters", "!short"},
		secrets + "-events-webhook http://h/T0KEN":                              {"-events-webhook of h is not https"},
		secrets + "-events-webhook https://u:T0KEN@h/":                          {"-events-webhook of h has a user or a password"},
		secrets + "-events-webhook T0KEN":                                       {"-events-webhook is no URL"},
		secrets + "-events-webhook https://h/T0KEN -events-secret-file /none":   {"-events-secret-file /none: no such file"},
		secrets + "-events-webhook https://h/T0KEN -events-secret-file " + long: {"has 4097 bytes; a secret has 4096 at most"},

		"HEADWAY_CONCURRENCY=0": {
			"worker: -concurrency 0 is not from 1 to 10000", "try: -concurrency 32", "worker: -concurrency was read from HEADWAY_CONCURRENCY",
		},
		"HEADWAY_LOG_LEVEL=loud HEADWAY_DENY_CIDR=10.1.2.3/8": {`-log-level "loud" is unknown`, "-deny-cidr: deny CIDR", "was read from HEADWAY_"},
		limits + "-redis localhost":                           {"worker: the Redis URL has no scheme"},
		limits + "HEADWAY_REDIS=x:geheim@y":                   {"the Redis URL has no scheme", "-redis was read from HEADWAY_REDIS"},
		limits + "HEADWAY_REDIS=x:geheim@y HEADWAY_CONCURENCY=geheim": {
			`level=WARN msg="unknown environment variable: no flag has this name" variable=HEADWAY_CONCURENCY did_you_mean=HEADWAY_CONCURRENCY`,
		},
		limits + tokens + "HEADWAY_REDIS=x HEADWAY_AS=a HEADWAY_WITHIN=a": {"!unknown environment variable"},
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			env := map[string]string{}
			var args []string
			for _, word := range strings.Fields(line) {
				if name, value, is := strings.Cut(word, "="); is && strings.HasPrefix(name, "HEADWAY_") {
					env[name] = value
				} else {
					args = append(args, word)
				}
			}
			start(t, with(newFakeSystem()), env, args...).refuses(cli.ExitUsage, append(want, "try: ", "!geheim", "!T0KEN", "!0123456789abcdef")...)
		})
	}
}

// refuses waits for an end with nothing on stdout, and with what is wrong on stderr.
func (r *running) refuses(code int, want ...string) {
	r.t.Helper()
	r.ends(code)
	says(r.t, r.stderr.String(), want...)
	if out := r.stdout.String(); out != "" {
		r.t.Errorf("stdout: %s", out)
	}
}

// TestStartErrors holds that what cannot start says why and what to try, ends with 1 and leaves stdout alone.
func TestStartErrors(t *testing.T) {
	t.Parallel()
	good := "-limits " + limitsFile(t, someLimits)
	bad := limitsFile(t, "limits:\n  payments:\n    rules:\n      - {name: a, algorithm: fast, limit: -1, per: 1s}\n")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = taken.Close() })
	busy := taken.Addr().String()
	damaged, rdb := ownClient(t)
	must(t, rdb.HSet(t.Context(), "hw:limits", "version", "x").Err())
	for line, want := range map[string][]string{
		"":                        {"worker: there are no limits", "try: worker -limits limits.yaml"},
		"-limits /nowhere/l.yaml": {"worker: there is no limits file /nowhere/l.yaml", "try: ls /"},
		"-limits " + bad:          {"worker: " + bad + ":4:", "limit", "try: correct these lines"},
		good + " -redis redis://:geheim@127.0.0.1:1": {"worker: nothing listens at 127.0.0.1:1", "try: start it", "!geheim"},
		good + " -listen " + busy:                    {"worker: -listen cannot listen on " + busy + ": the port is in use", "try: "},
		"-redis " + damaged: {
			"worker: the limits in Redis are damaged: its version is", "try: the newest version of this program",
		},
	} {
		start(t, with(newFakeSystem()), nil, strings.Fields(line)...).refuses(cli.ExitFailed, want...)
	}
	failing := newFakeSystem()
	failing.err = errors.New("no engine")
	start(t, with(failing), nil, strings.Fields(good)...).refuses(cli.ExitFailed, "worker: no engine")
}

// TestStartsAndStops holds that the first signal lets running tasks end, and that the program then exits 0 with an empty stdout.
func TestStartsAndStops(t *testing.T) {
	t.Parallel()
	f := newFakeSystem()
	f.drained = make(chan struct{})
	r := start(t, with(f), nil, "-limits", limitsFile(t, someLimits), "-listen", "127.0.0.1:0", "-queues", "low=1,high=6")
	r.says("msg=ready queues=\"high=6,low=1\" concurrency=32")
	if !strings.Contains(r.stderr.String(), "nothing is kept on disk, and all tasks are lost") {
		t.Errorf("no warning of the embedded server:\n%s", r.stderr.String())
	}
	base := "http://" + r.found("addr")
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
	_, err = b.ReadFrom(resp.Body)
	must(t, err)
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
	r.says("level=WARN msg=\"many queues")
}

// A worker is set up by the environment alone: every flag has its variable.
func TestWorkerEnvironment(t *testing.T) {
	t.Parallel()
	env := map[string]string{
		"HEADWAY_REDIS": ownRedis(t), "HEADWAY_LIMITS": limitsFile(t, someLimits), "HEADWAY_QUEUES": "low=1,high=6", "HEADWAY_CONCURRENCY": "7",
		"HEADWAY_LOG_FORMAT": "json", "HEADWAY_USAGE": "false", "HEADWAY_ALLOW_HOST": "localhost:1, localhost:2",
	}
	r := start(t, with(newFakeSystem()), env)
	r.says(`"msg":"ready","queues":"high=6,low=1","concurrency":7`)
	r.quits()
	if strings.Contains(r.stderr.String(), "unknown environment variable") {
		t.Errorf("warns of known variables:\n%s", r.stderr.String())
	}
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
		out, errs := askIn(t, env, code, append([]string{"limits"}, args...)...)
		return out + errs
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
	env := map[string]string{"HEADWAY_REDIS": "redis://anna:geheim@127.0.0.1:1/0"}
	faulty := map[string]string{"HEADWAY_REDIS": "redis//anna:geheim@127.0.0.1:1/0 x", "HEADWAY_JSON": "maybe"}
	for _, command := range []string{"", "inspect", "inspect usage", "limits", "limits set", "tasks", "tasks run", "page", "health", "leave"} {
		words := strings.Fields(command)
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
