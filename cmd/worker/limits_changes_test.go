package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker"
)

// -dry-run says what a change would do, in the words that the change has, and changes nothing.
func TestLimitsDryRun(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	l.says(0, "set payments/acme tenant limit=7 -dry-run", "dry run over version 1: nothing was changed",
		"+ payments/acme {name: tenant, ", "limit: 7", "no task waits there", "!in force")
	l.says(0, "pause payments -for 1h -dry-run", "+ payments paused until 20")
	got := l.objects("pause", "payments", "-dry-run")
	want(t, got[0], map[string]any{"dry_run": true, "version": 1.0, "rules": 1.0})
	l.says(0, "reset payments -dry-run", "payments account would be reset; it has counted 0 requests")
	l.says(1, "reset payments/acme/x -dry-run", "no rate rule counts at payments/acme/x itself")
	l.says(1, "pause paymemts -dry-run", "the limits do not name paymemts; did you mean payments?")
	l.says(1, "set payments/acme tennant limit=3 -dry-run", `payments/acme has no rule "tennant" of its own; did you mean tenant?`)
	l.says(1, "remove payments acount -dry-run", "did you mean account?")
	if history := l.objects("history"); len(history) != 1 {
		t.Errorf("a dry run changed the limits: %v", history)
	}
	l.run(0, "pause", "payments")
	want(t, l.objects("history")[1], map[string]any{"change": "pause payments", "via": "cli"})
}

// docs/breaker.md, "By hand": "worker limits open" and "close", and what they say where there is nothing to open or close.
func TestLimitsBreaker(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	l.says(1, "open payments/acme", "payments/acme has no breaker of its own", "try: worker limits pause; or give it a breaker: worker limits assign")
	l.run(0, "assign", "payments/*", "breaker={wait: 20s}", "-as", "anna")
	l.says(1, "open payments/acme/refunds", "payments/acme/refunds has no breaker of its own; that of payments/acme stops it too")
	l.says(1, "open payments/*", `scope "payments/*": name 2 is "*", which stands for every name`)
	l.says(1, "close payments/acme", "it is so already")
	l.says(2, "open payments/acme -for 0s", "-for 0s is not above 0")
	l.says(0, "open payments/acme -dry-run", "no task waits there")
	l.says(0, "open payments/acme -for 1h -as bert -reason broken", "version 3 by bert (user default): open payments/acme for 1h0m0s, reason \"broken\"")
	i := &inspected{t: t, url: l.url}
	i.says(0, "scope payments/acme/refunds", "breaker    payments/acme, open since 20", "next probe in ", "m")
	want(t, l.objects("close", "payments/acme")[0], map[string]any{"version": 4.0, "change": "close payments/acme", "reach": nil})
	i.says(0, "scope payments/acme/refunds", "!open since", "tenant of payments/acme")
	l.says(0, "history", "bert (user default) via cli  open payments/acme for 1h0m0s")
}

// docs/limits.md: "history prints what each version has changed", in text and as objects.
func TestHistorySaysWhatChanged(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	l.run(0, "set", "payments/acme", "tenant", "limit=100", "-as", "bert")
	l.run(0, "set", "payments/acme", "tenant", "limit=500", "-for", "1h")
	l.run(0, "pause", "payments", "-for", "1h")
	l.run(0, "assign", "payments", "owner=team", "weight=3")
	l.run(0, "rollback", "2")
	out, _ := l.run(0, "history")
	says(t, out,
		"\n  + payments {name: account, algorithm: sliding-window, limit: 200, per: 1s}\n",
		"  - payments/acme {name: tenant, algorithm: token-bucket, limit: 100, per: 1s, burst: 5}\n  + payments/acme {name: tenant, algorithm: token-bucket, limit: 500, per: 1s, burst: 5}, until 20",
		"\n  + payments paused until 20", "\n  + payments owner: team\n  + payments weight: 3\n", "\n  - payments owner: team\n  - payments paused until 20")
	history := l.objects("history")
	want(t, history[1], map[string]any{"version": 2.0, "by": "bert", "rules": 1.0})
	one := history[1]["diff"].([]any)[0].(map[string]any)
	if len(one) != 3 || one["scope"] != "payments/acme" || one["rule"] != "tenant" || one["after"] != "{name: tenant, algorithm: token-bucket, limit: 100, per: 1s, burst: 5}" {
		t.Errorf("%v", one)
	}
	at(t, history[2]["diff"].([]any)[0].(map[string]any)["after_until"])
}

// "diff compares two versions, or a version and a file".
func TestDiffOfVersions(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	l.run(0, "set", "payments", "account", "limit=100")
	l.run(0, "set", "payments", "account", "limit=50", "-for", "1h")
	const rule = "payments {name: account, algorithm: sliding-window, limit: %d, per: 1s}\n"
	lines := func(before, after int) string { return fmt.Sprintf("- "+rule+"+ "+rule, before, after) }
	file := limitsFile(t, strings.Replace(liveLimits, "limit: 200", "limit: 70", 1))
	for args, want := range map[string]string{
		"1 2": lines(200, 100), "2 1": lines(100, 200), "2 2": "", "1": lines(50, 200),
		file: lines(50, 70), "2 " + file: lines(100, 70), file + " 2": lines(70, 100), file + " " + file: "",
	} {
		code := 0
		if want != "" {
			code = 1
		}
		if out, _ := l.run(code, append([]string{"diff"}, strings.Fields(args)...)...); out != want {
			t.Errorf("diff %s:\n%swant\n%s", args, out, want)
		}
	}
	l.says(1, "diff 1 3", "limit: 50, per: 1s}, until 20", "+ payments {name: account, algorithm: sliding-window, limit: 100, per: 1s}, from 20")
	l.says(1, "diff 1 30", "version 30 of the limits is not kept any more", "try: worker limits history")
	number := filepath.Join(t.TempDir(), "12")
	must(t, os.WriteFile(number, []byte(liveLimits), 0o600))
	l.run(1, "diff", number)
}

// What is said of an author cannot be taken for the Redis user.
func TestAuthor(t *testing.T) {
	t.Parallel()
	for want, who := range map[string][2]string{
		"anna (user ops)":                    {"anna", "ops"},
		"worker on host (user unknown)":      {"worker on host", ""},
		`"anna (user root)" (user ops)`:      {"anna (user root)", "ops"},
		`"\u202eanna" (user "o\x1b[2Jps")`:   {"\u202eanna", "o\x1b[2Jps"},
		`"eve (user ops) # x" (user worker)`: {"eve (user ops) # x", "worker"},
	} {
		if got := author(who[0], who[1]); got != want {
			t.Errorf("%q became %s, want %s", who, got, want)
		}
	}
}

// nasty is what others may have put into Redis or a file to reach the terminal of who looks.
const nasty = "x\x1b[2J\x1b]0;t\a\r\u009b31m\u202e\u2066\x7f"

// noControls holds that nothing of it does.
func noControls(t *testing.T, what, text string) {
	t.Helper()
	for _, r := range text {
		if r != '\n' && !unicode.IsPrint(r) {
			t.Errorf("%s prints %U:\n%+q", what, r, text)
			return
		}
	}
}

// docs/operations.md: "Nothing of it reaches the terminal", whatever others wrote into Redis or a
// file: names of queues, types, errors, authors, changes, units, rules and scopes.
func TestNastyNamesAreEscaped(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	rdb := open(t, l.url)
	ctx := t.Context()
	scope := "payments/x\u202ex"
	l.run(0, "set", scope, "tenant\u202e", "algorithm=token-bucket", "limit=1", "per=1h", "unit=tok")
	l.run(0, "assign", "payments", "owner=o\u202eo", "apps=worker,a\u2066b")
	l.run(0, "pause", scope, "-for", "1h")
	text := rdb.HGet(ctx, "hw:limits", "v:4").Val()
	author, err := json.Marshal(nasty)
	must(t, err)
	text = regexp.MustCompile(`(user|by|change)":"[^"]*"`).ReplaceAllString(text, `$1":`+string(author))
	rdb.HSet(ctx, "hw:limits", "v:4", text)
	l.says(0, "list", `by "x\x1b[2J`) // it is still what worker limits can read

	client := asynq.NewClientFromRedisClient(rdb)
	for _, name := range []string{"default", "q\x1b[31m\u202e"} {
		task := asynq.NewTaskWithHeaders("type"+nasty, nil, map[string]string{queue.HeaderScope: scope})
		_, err := client.Enqueue(task, asynq.TaskID("id"+nasty), asynq.Queue(name))
		must(t, err)
	}
	for _, words := range []string{
		"limits list", "limits history", "limits show " + scope, "limits show payments/*", "limits export",
		"limits diff " + limitsFile(t, liveLimits), "limits set payments account limit=9 -if-version 2", "limits set " + scope + " tenant\u202e limit=2",
		"limits remove " + scope + " none\u202e", "limits resume " + scope, "limits pause " + scope, "limits drain " + scope + " -timeout 1s",
		"limits reset " + scope, "limits unset " + scope, "limits import no\x1b[2J", "limits " + nasty, "limits list " + nasty,
		"inspect scope " + scope, "inspect task none\u202e", "inspect task id" + nasty, "inspect usage " + scope, "inspect scope other/\u202e",
		"leave -queues q\x1b[31m", "leave", "-limits no\x1b[2J", "-limits " + limitsFile(t, "limits: {\"a\u202e\u009b\": 7}"),
	} {
		for _, format := range [][]string{nil, {"-json"}} {
			args := strings.Split(words, " ")
			if len(args) > 1 && args[0] != "-limits" {
				args = append(args, format...)
			}
			if args[0] != "-limits" {
				args = append(args, "-redis", l.url)
			}
			var out, errs strings.Builder
			code := run(ctx, args, noEnv, &out, &errs)
			noControls(t, words, out.String())
			noControls(t, words, errs.String())
			if out.Len()+errs.Len() == 0 && code != cli.ExitOK {
				t.Errorf("%s: exit %d without a word", words, code)
			}
		}
	}
}

// docs/limits.md: "A change says in which processes it is in force, and which do not follow."
func TestChangeSaysWhereItIsInForce(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	rdb := open(t, l.url)
	host, err := os.Hostname()
	must(t, err)
	l.says(0, "set payments account limit=100", "\n  no running process follows these limits\n")

	// An asynq server of which nothing is known, as of a program without Headway.
	bareServer(t, rdb, asynq.NewServeMux())
	l.says(0, "set payments account limit=101", "\n  no running process follows these limits; 1 asynq server not known to follow: "+host+" (pid "+strconv.Itoa(os.Getpid())+")\n")

	// Two workers, a program that follows, and one that does not.
	for range 2 {
		limits, err := worker.New(rdb, worker.Config{App: "mail", NoMetrics: true, Logger: slog.New(slog.DiscardHandler)})
		must(t, err)
		server := limits.NewServer(asynq.Config{Concurrency: 1})
		must(t, server.Start(asynq.NewServeMux()))
		t.Cleanup(server.Shutdown)
	}
	p, err := policy.New(policy.UnmatchedDeny, nil)
	must(t, err)
	limiter, err := throttle.New(rdb, p, throttle.Config{})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var web sync.WaitGroup
	web.Go(func() {
		policystore.Follow(ctx, policystore.New(rdb, policystore.Config{}), limiter, policystore.FollowConfig{App: "web"})
	})
	web.Go(func() {
		policystore.Announce(ctx, policystore.New(rdb, policystore.Config{}), policystore.Process{App: "billing"})
	})
	defer web.Wait()
	defer cancel()
	redistest.WaitAsking(t, "the processes to be known", bound, func() bool {
		list, err := policystore.New(rdb, policystore.Config{}).Processes(t.Context())
		return err == nil && len(list) == 4
	})
	const all = "in force in 2 workers and 1 other process; 1 of an app that does not follow: billing@"
	for _, command := range []string{"pause payments", "resume payments", "set payments account limit=9", "assign payments owner=anna", "remove payments account", "unset payments", "rollback 2"} {
		l.says(0, command, "\n  "+all+host+"\n")
	}
	l.says(0, "show payments/acme", "\nversion 10: "+all+host+"\n")

	// One that follows and does not come along: it hangs, or was killed.
	text, err := json.Marshal(policystore.Process{App: "mail", Host: "web-9", PID: 12, ID: "x", Follows: true, Version: 3})
	must(t, err)
	rdb.ZAdd(t.Context(), "hw:processes", redis.Z{Score: float64(time.Now().Add(time.Hour).UnixMilli()), Member: text})
	change := l.objects("set", "payments", "account", "limit=55")
	reaches := map[string]any{
		"workers": 2.0, "others": 1.0, "behind": []any{map[string]any{"app": "mail", "host": "web-9", "pid": 12.0, "version": 3.0}},
		"not_following": []any{map[string]any{"app": "billing", "host": host, "pid": float64(os.Getpid())}},
	}
	if len(change) != 1 || !reflect.DeepEqual(change[0]["reach"], reaches) {
		t.Errorf("%v; want %v", change, reaches)
	}
	l.says(0, "show payments/*", "; not yet in 1, or ended: mail@web-9 at version 3; 1 of an app that does not follow: ")
}

// "worker limits check": every fault with its line, what is odd as a warning, and no Redis.
func TestLimitsCheck(t *testing.T) {
	t.Parallel()
	sound := limitsFile(t, someLimits)
	odd := limitsFile(t, someLimits+"    scopes: {acme: {rules: [{name: tenant, algorithm: sliding-window, limit: 300, per: 1s}]}}\n")
	slow := limitsFile(t, `limits: {p: {rules: [{name: r, algorithm: token-bucket, limit: 20, per: 1s, margin: 500ms}, {name: m, algorithm: calendar, limit: 1, resets: "0 0 31 * *"}]}}`)
	faulty := limitsFile(t, strings.Replace(someLimits, "limit: 200", "limt: 200", 1))
	for _, c := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{sound}, cli.ExitOK, []string{""}},
		{[]string{odd}, cli.ExitOK, []string{odd + ": warning: payments/acme tenant: can never bind: payments:account lets no more through"}},
		{[]string{sound, odd, "-strict"}, cli.ExitFailed, []string{": warning: "}},
		{[]string{odd, faulty}, cli.ExitFailed, []string{": warning: ", faulty + ":4:", "limt is not a field of a rule; did you mean limit?"}},
		{[]string{sound + ".none"}, cli.ExitFailed, []string{"there is no limits file " + sound + ".none", "try: " + sound + "\n"}},
		{[]string{slow}, cli.ExitOK, []string{slow + ": warning: p r: reaches 66 % of its limit at most", slow + ": warning: p m: resets on days that Feb, Apr, Jun, Sep, Nov lack"}},
	} {
		out, errs := ask(t, c.code, append([]string{"limits", "check"}, c.args...)...)
		says(t, out+errs, c.want...)
	}
	out, _ := ask(t, cli.ExitFailed, "limits", "check", "-json", odd, faulty)
	all := objects(t, out)
	want(t, all[0], map[string]any{"level": "warning"})
	want(t, all[1], map[string]any{"level": "fault", "line": 4.0})
}

// "worker limits check -answer": what a recorded answer would do, and what is wrong with how it is asked for.
func TestLimitsCheckAnswer(t *testing.T) {
	t.Parallel()
	limits := limitsFile(t, `limits: {github: {answers: github, rules: [{name: hour, algorithm: sliding-window, limit: 5000, per: 1h}], scopes: {llm: {answers: openai}, deaf: {answers: ignore}}}}`)
	answer := func(text string) string {
		name := filepath.Join(t.TempDir(), "answer.txt")
		must(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	secondary := answer("HTTP/2 403 \r\ncontent-type: application/json\r\n\r\n{\"message\": \"You have exceeded a secondary rate limit.\"}")
	stream := answer("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n" +
		"data: {\"choices\": []}\n\ndata: {\"usage\": {\"prompt_tokens\": 19, \"completion_tokens\": 10, \"total_tokens\": 29}}\n\n")
	known := answer("HTTP/1.1 429 Too Many Requests\nRetry-After: 30\n\n")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{limits, "-answer", secondary, "-scope", "github/acme"}, cli.ExitOK, secondary + ": 403 to a call of github/acme: limited; github waits 1m0s at first, and twice as long each time that it was in vain"},
		{[]string{limits, "-answer", known, "-scope", "github/acme"}, cli.ExitOK, "; github/acme waits 30s\n"},
		{[]string{limits, "-answer", known, "-scope", "github/deaf"}, cli.ExitOK, "limited; nothing waits, since its answers are ignored"},
		{[]string{limits, "-answer", answer("HTTP/1.1 502 Bad Gateway\n\n"), "-scope", "github"}, cli.ExitOK, "502 to a call of github: failed\n"},
		{[]string{limits, "-answer", answer("HTTP/1.1 200 OK\n\n"), "-scope", "github"}, cli.ExitOK, "200 to a call of github: fine\n"},
		{[]string{limits, "-answer", stream, "-scope", "github/llm"}, cli.ExitOK, "fine; it has cost 19 input-tokens; it has cost 10 output-tokens; it has cost 29 tokens\n"},
		{[]string{limits, "-answer", answer("<html>"), "-scope", "github"}, cli.ExitFailed, "is no recorded answer"},
		{[]string{limits, "-answer", limits + ".none", "-scope", "github"}, cli.ExitFailed, "cannot read the answer"},
		{[]string{limits, "-answer", known, "-scope", "gitlab"}, cli.ExitFailed, "gitlab"},
		{[]string{limits, "-answer", known}, cli.ExitUsage, "-answer and -scope stand together"},
		{[]string{limits, limits, "-answer", known, "-scope", "github"}, cli.ExitUsage, "takes one file of limits, not 2"},
	} {
		out, errs := ask(t, c.code, append([]string{"limits", "check"}, c.args...)...)
		says(t, out+errs, c.want)
	}
	out, _ := ask(t, cli.ExitOK, "limits", "check", "-json", limits, "-answer", secondary, "-scope", "github/acme")
	want(t, objects(t, out)[0], map[string]any{"status": 403.0, "means": "limited", "waits": "github", "wait_s": 60.0, "guessed": true})
}

// What a person does who stops a vendor for a while, and what the program says.
func TestLimitsPause(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	l.says(0, "pause payments -for 1h -as bert", "version 2 by bert (user default), in force at ", "+ payments paused until 20", "!before by")
	l.says(0, "list", "payments paused until 20", "  # set by bert (user default) at 20", "!since", "payments {name: account")
	l.says(0, "pause payments -as anna", "paused before by bert (user default) at 20", "- payments paused until 20", "+ payments paused\n")
	l.says(0, "show payments/acme/x", "payments paused  # set by anna (user default) at 20", ", since 20", "{name: account", "{name: tenant")
	out, _ := l.run(0, "export")
	says(t, out, "paused: true")
	paused := limitsFile(t, out)
	l.says(1, "diff "+limitsFile(t, liveLimits), "- payments paused\n", "!+")
	l.run(0, "diff", paused)

	l.run(0, "pause", "payments/*")
	l.says(0, "resume payments", "- payments paused", "!+")
	l.says(0, "resume payments/acme -as bert", "+ payments/acme not paused")
	l.says(0, "show payments/acme", "!paused")
	got := l.objects("list")
	want(t, got[1], map[string]any{"scope": "payments/*", "rule": "/paused", "text": "paused: true", "from": "set", "until": nil})
	want(t, got[3], map[string]any{"scope": "payments/acme", "rule": "/paused", "text": "paused: false", "from": "set", "updated_by": "bert"})

	l.run(0, "import", "-replace", paused)
	l.says(0, "list", "payments paused  # imported by", "payments/* paused  # set by", "payments/acme not paused  # set by bert")
	for args, want := range map[string]string{
		"pause payments/*":                         "it is so already",
		"resume payments/globex/x":                 "payments/globex/x is not paused itself; payments/globex is",
		"resume mail":                              "mail is not paused by the limits; close ends a pause that its API asked for",
		"set payments/acme /paused unlimited=true": "name holds a '/'",
	} {
		l.says(1, args, want, "!goroutine")
	}
}

// "drain: pause, then wait until no task of SCOPE runs any more." Whatever ends that, the pause stays.
func TestLimitsDrain(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	rdb := open(t, l.url)
	ends := map[string]chan struct{}{"payments/a": make(chan struct{}), "payments/b/x": make(chan struct{})}
	bareServer(t, rdb, asynq.HandlerFunc(func(_ context.Context, task *asynq.Task) error {
		<-ends[task.Headers()[queue.HeaderScope]]
		return nil
	}))
	t.Cleanup(func() {
		for _, end := range ends {
			close(end)
		}
	})
	for scope := range ends {
		enqueue(t, rdb, queue.Task{Type: "work", Scope: scope})
	}
	redistest.WaitFor(t, "both to run", bound, func() bool {
		info, err := asynq.NewInspectorFromRedisClient(rdb).GetQueueInfo("default")
		return err == nil && info.Active == 2
	})

	_, errs := l.run(1, "drain", "payments", "-timeout", "1500ms", "-as", "anna")
	says(t, errs, "worker limits drain: 2 tasks of payments still run\n", "2 tasks of payments still run after 1.5s; payments stays paused", "try: worker limits drain payments again")
	l.says(0, "drain payments/a/*", "+ payments/a/* paused", "no task of payments/a/* runs; it stays paused until worker limits resume payments/a/*\n")
	l.run(0, "resume", "payments")

	r := start(t, whole, nil, "limits", "-redis", l.url, "drain", "payments/*")
	r.says("2 tasks of payments/* still run")
	r.stop()
	r.ends(cli.ExitInterrupted)
	says(t, r.stderr.String(), "interrupted; payments/* stays paused\ntry: worker limits resume payments/*\n")
	l.says(0, "list", "payments/* paused")

	r = start(t, whole, nil, "limits", "-redis", l.url, "drain", "payments/a", "-json") // the others may go on
	r.says("1 task of payments/a still runs")
	ends["payments/a"] <- struct{}{}
	r.ends(cli.ExitOK)
	says(t, r.stdout.String(), `{"scope":"payments/a","drained":true,"running":0,"waited_ms":`)
}

// "Which rule it waits for" is the pause, and who made it.
func TestInspectPaused(t *testing.T) {
	t.Parallel()
	i := newInspected(t)
	l := &limited{t: t, url: i.url}
	l.run(0, "import", "-replace", limitsFile(t, inspectLimits))
	l.run(0, "pause", "free", "-for", "1h", "-as", "anna")
	l.run(0, "pause", "runs", "-as", "bert")
	policy, err := limitsyaml.Parse("limits", []byte(l.objects("export")[0]["limits"].(string)))
	must(t, err)
	i.limits.SetPolicy(policy)
	want(t, i.objects("scope", "free")[0], map[string]any{"paused_scope": "free", "paused_by": "anna", "waiting": 0.0, "rule": nil})
	i.enqueue(queue.Task{Scope: "free/x", ID: "f"}, queue.Task{Scope: "runs", ID: "r"})
	got := i.objects("scope", "free")[0]
	want(t, got, map[string]any{"paused_scope": "free", "paused_by": "anna", "waiting": 1.0, "rule": "/paused", "rule_scope": "free", "next_start": got["paused_until"]})
	if until := at(t, got["paused_until"]); until.Sub(at(t, got["paused_since"])) != time.Hour {
		t.Errorf("%v", got)
	}
	want(t, i.objects("scope", "runs")[0], map[string]any{"paused_by": "bert", "paused_until": nil, "next_start": nil, "rule": "/paused"})
	got = i.objects("task", "f")[0]
	want(t, got, map[string]any{"turn": "waiting", "position": 1.0, "paused_scope": "free", "paused_by": "anna", "rule": "/paused", "rule_scope": "free", "start": got["paused_until"]})
	i.says(0, "task f", "paused     free, since 20", ", by anna (user default), until 20", "start      in 59m", ", after the pause of free\n")
	i.says(0, "task r", "paused     runs, since 20", ", by bert (user default)\n", "start      when runs is resumed\n")
	want(t, i.objects("scope", "p {*}")[0], map[string]any{"paused_scope": nil})
	i.says(0, "-limits "+limitsFile(t, inspectLimits+"  given: {paused: true}\n")+" scope given", "paused     given\n", "!since")
}
