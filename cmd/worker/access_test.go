package main

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/countapi"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/demand"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/upstream"
)

// accessRule is a command of docs/operations.md that makes a user, word by word.
func accessRule(t *testing.T, user string) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	must(t, err)
	_, rule, found := strings.Cut(string(text), "\nACL SETUSER "+user+" ")
	rule, _, closed := strings.Cut(rule, "\n```")
	if !found || !closed {
		t.Fatalf("docs/operations.md has no ACL SETUSER %s", user)
	}
	return strings.Fields("ACL SETUSER " + user + " " + strings.ReplaceAll(rule, ">PASSWORD", ">secret"))
}

// guarded is a server with the users of docs/operations.md.
type guarded struct {
	*redistest.Server
	t     *testing.T
	admin *redis.Client
}

func newGuarded(t *testing.T, users ...string) *guarded {
	t.Helper()
	g := &guarded{Server: redistest.NewServer(t), t: t}
	g.admin = g.Client(t)
	for _, user := range users {
		g.rule(accessRule(t, user)...)
	}
	return g
}

func (g *guarded) rule(words ...string) {
	g.t.Helper()
	command := make([]any, len(words))
	for i, w := range words {
		command[i] = w
	}
	if err := g.admin.Do(g.t.Context(), command...).Err(); err != nil {
		g.t.Fatalf("%q: %v", words, err)
	}
}

func (g *guarded) url(user string) string { return "redis://" + user + ":secret@" + g.Addr() }

// limits are the verbs of "worker limits", run as a user.
func (g *guarded) limits(user string) *limited { return &limited{t: g.t, url: g.url(user)} }

// refused are what users were refused, but for what is expected.
func (g *guarded) refused(expected ...string) (all []string) {
	g.t.Helper()
	log, err := g.admin.ACLLog(g.t.Context(), 1000).Result()
	must(g.t, err)
next:
	for _, e := range log {
		text := fmt.Sprintf("%s %s %s", e.Username, e.Reason, e.Object)
		for _, want := range expected {
			if text == want {
				continue next
			}
		}
		all = append(all, text)
	}
	return all
}

const accessLimits = `
limits:
  payments:
    rules:
      - {name: account, algorithm: sliding-window, limit: 10, per: 1s}
      - {name: day, algorithm: calendar, limit: 1000, resets: "0 0 * * *"}
    tiers: {gold: {}}
    scopes:
      "*":
        breaker: {of: 1000}
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 20, per: 1s, burst: 5, on_redis_error: share}
          - {name: hour, algorithm: fixed-window, limit: 1000, per: 1h}
          - {name: parallel, algorithm: concurrency, limit: 2, lease: 1s}
          - {name: trial, algorithm: sliding-window, limit: 1, per: 1s, shadow: true}
`

// life has a worker do all that it does: decide, wait, take turns, renew leases, retry, archive, be
// refused by an API, run schedules and follow the limits.
func (g *guarded) life(r *running, url string, change func()) {
	t := g.t
	t.Helper()
	r.says("msg=ready")
	inspector := asynq.NewInspectorFromRedisClient(g.admin)
	tasks := []queue.Task{
		{ID: "slow", Scope: "payments/acme", HTTP: &queue.HTTP{URL: url + "?latency=3s"}},
		{ID: "fails", Scope: "payments/acme", HTTP: &queue.HTTP{URL: url + "?status=500"}, MaxRetry: queue.Retries(5)},
		{ID: "last", Scope: "payments/acme", HTTP: &queue.HTTP{URL: url + "?status=404"}, MaxRetry: queue.Retries(0)},
		{ID: "later", Scope: "payments/other", HTTP: &queue.HTTP{URL: url + "?status=429&retry_after=1"}, MaxRetry: queue.Retries(0)},
		{ID: "costs", Scope: "payments/third", Costs: map[string]int64{"requests": 1, "tokens": 5}},
		{ID: "kept", Scope: "payments/acme", Remember: time.Hour},
		{ID: "unknown", Scope: "nowhere"},
	}
	for i := range 40 {
		tasks = append(tasks, queue.Task{ID: fmt.Sprint("n", i), Scope: fmt.Sprintf("payments/t%d", i%2), Queue: []string{"default", "low"}[i%2]})
	}
	for _, task := range tasks {
		task.Type = queue.TypeHTTP
		if task.HTTP == nil {
			task.HTTP = &queue.HTTP{URL: url}
		}
		enqueue(t, g.admin, task)
	}
	change()
	redistest.WaitFor(t, "all of them to have run", bound, func() bool {
		left := 0
		for _, name := range []string{"default", "low"} {
			info, err := inspector.GetQueueInfo(name)
			if err != nil {
				return false
			}
			left += info.Pending + info.Active + info.Scheduled + info.Retry
		}
		return left <= 3 // fails, later, and unknown
	})
	if err := inspector.CancelProcessing("slow"); err != nil {
		t.Error(err)
	}
	becomes(t, g.admin, "last", asynq.TaskStateArchived)
	becomes(t, g.admin, "unknown", asynq.TaskStateRetry)
	r.quits()
}

const accessSchedules = `schedules: {tidy: {cron: "* * * * *", task: {type: http, scope: payments/acme, http: {url: "URL"}}}}`

// works has a worker of a user live its life, and returns it at its end.
func (g *guarded) works(user string, change func(), args ...string) *running {
	g.t.Helper()
	api, err := countapi.Start("127.0.0.1:0")
	must(g.t, err)
	g.t.Cleanup(func() { _ = api.Close() })
	schedules := limitsFile(g.t, strings.Replace(accessSchedules, "URL", api.URL("p"), 1))
	r := start(g.t, whole, nil, append([]string{"-redis", g.url(user), "-allow-host", api.Addr(), "-queues", "default=3,low=1", "-schedules", schedules}, args...)...)
	g.life(r, api.URL("p"), change)
	return r
}

// docs/operations.md: "This user runs the program worker with all that it does, and is refused every
// write of the limits"; it follows them "without a word".
func TestWorkerAccess(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, "worker", "changer")
	g.limits("changer").run(0, "import", "-replace", limitsFile(t, accessLimits))
	r := g.works("worker", func() { g.limits("changer").run(0, "set", "payments", "account", "limit=15", "-as", "anna") }, "-record", "redis")
	r.says(`change="set payments account limit=15" by=anna`)
	for line := range strings.Lines(r.stderr.String()) {
		if !strings.Contains(line, "level=INFO") && !strings.Contains(line, "failed and is archived") && !strings.Contains(line, "no rule matches the scope") && !strings.Contains(line, "the API asked to stop calling") {
			t.Errorf("logged %s", line)
		}
	}
	if all := g.refused("worker key hw:limits"); len(all) > 0 { // to renew them
		t.Errorf("refused were %q", all)
	}
	scheduler := asynq.NewScheduler(asynq.RedisClientOpt{Addr: g.Addr(), Username: "worker", Password: "secret"}, nil)
	_, err := scheduler.Register("@every 1s", asynq.NewTask("none", nil))
	must(t, err)
	must(t, scheduler.Start())
	inspector := asynq.NewInspectorFromRedisClient(g.admin)
	redistest.WaitFor(t, "the scheduler to have enqueued", bound, func() bool {
		all, err := inspector.SchedulerEntries()
		return err == nil && len(all) == 1 && !all[0].Prev.IsZero()
	})
	scheduler.Shutdown()
	if all := g.refused("worker key hw:limits"); len(all) > 0 {
		t.Errorf("the scheduler was refused %q", all)
	}
	_ = g.admin.ACLLogReset(t.Context())

	rdb := redis.NewClient(&redis.Options{Addr: g.Addr(), Username: "worker", Password: "secret"})
	t.Cleanup(func() { _ = rdb.Close() })
	stands := g.admin.HGetAll(t.Context(), "hw:limits").Val()
	ctx := t.Context()
	for name, err := range map[string]error{
		"hset":        rdb.HSet(ctx, "hw:limits", "version", "9").Err(),
		"hdel":        rdb.HDel(ctx, "hw:limits", "version").Err(),
		"del":         rdb.Del(ctx, "hw:limits").Err(),
		"set":         rdb.Set(ctx, "hw:limits", "x", 0).Err(),
		"pexpire":     rdb.PExpire(ctx, "hw:limits", time.Millisecond).Err(),
		"rename":      rdb.Rename(ctx, "hw:queues", "hw:limits").Err(),
		"script":      rdb.Eval(ctx, "return redis.call('HSET', KEYS[1], 'version', '9')", []string{"hw:limits"}).Err(),
		"hidden":      rdb.Eval(ctx, "return redis.call('HSET', 'hw:limits', 'version', '9')", nil).Err(),
		"another key": rdb.HSet(ctx, "hw:limits2", "version", "9").Err(),
		"flushall":    rdb.FlushAll(ctx).Err(),
		"acl":         rdb.Do(ctx, "ACL", "SETUSER", "worker", "~*", "+@all").Err(),
		"config":      rdb.ConfigSet(ctx, "requirepass", "x").Err(),
	} {
		if err == nil || !strings.Contains(err.Error(), "NOPERM") && !strings.Contains(err.Error(), "ACL failure in script") && !strings.Contains(err.Error(), "can't run this command") && !strings.Contains(err.Error(), "can't access") {
			t.Errorf("%s: %v", name, err)
		}
	}
	g.limits("worker").says(1, "set payments account limit=1000", "the user of Redis at", "may not change limits; nothing was changed", "docs/operations.md")
	g.limits("worker").run(0, "list")
	// "Programs that enqueue, and worker inspect, can have the same user."
	policy, err := queue.PublishedPolicy(ctx, rdb)
	must(t, err)
	limiter, err := throttle.New(rdb, policy, throttle.Config{})
	must(t, err)
	client := queue.NewClient(rdb, queue.ClientConfig{Limiter: limiter})
	for i := range 30 {
		_, err := client.Enqueue(ctx, queue.Task{Type: "work", ID: fmt.Sprint("w", i), Scope: "payments/acme"})
		must(t, err)
	}
	for _, words := range []string{"scope payments/acme", "task w0", "task w29", "usage payments"} {
		ask(t, cli.ExitOK, append(append([]string{"inspect"}, strings.Fields(words)...), "-redis", g.url("worker"))...)
	}
	if now := g.admin.HGetAll(ctx, "hw:limits").Val(); !maps.Equal(now, stands) || len(now) == 0 {
		t.Errorf("%v became %v", stands, now)
	}
}

// docs/operations.md: "A worker that publishes its file has ~hw:limits*, and +watch … besides."
func TestPublisherAccess(t *testing.T) {
	t.Parallel()
	g := newGuarded(t)
	rule := strings.Join(accessRule(t, "worker"), " ")
	rule = strings.Replace(rule, "%R~hw:limits*", "~hw:limits*", 1) + " +watch +unwatch +multi +exec +acl|whoami"
	g.rule(strings.Fields(strings.Replace(rule, "SETUSER worker", "SETUSER publisher", 1))...)
	path := limitsFile(t, accessLimits)
	r := g.works("publisher", func() { write(t, path, strings.Replace(accessLimits, "limit: 10,", "limit: 15,", 1)) }, "-limits", path)
	r.says(`msg="limits file published"`)
	r.says("version=2")
	if all := g.refused(); len(all) > 0 {
		t.Errorf("refused were %q", all)
	}
}

// docs/operations.md: "This user runs every verb of worker limits."
func TestChangerAccess(t *testing.T) {
	t.Parallel()
	g := newGuarded(t, "changer")
	l := g.limits("changer")
	l.everyVerb()
	if all := g.refused(); len(all) > 0 {
		t.Errorf("refused were %q", all)
	}
	if users := l.objects("history"); users[0]["user"] != "changer" {
		t.Errorf("%v", users[0])
	}
	// "Without +acl|whoami changes are made."
	g.rule("ACL", "SETUSER", "changer", "-acl|whoami")
	l.says(0, "set payments account limit=77 -as anna", "by anna (user unknown)")
	// "Leave them out for a user that needs none of these."
	g.rule("ACL", "SETUSER", "changer", "resetkeys", "~hw:limits*", "~hw:probe")
	l.run(0, "set", "payments", "account", "limit=78")
	l.run(0, "rollback", "2")
	l.run(1, "reset", "payments/acme")
}

// everyVerb runs "worker limits" with each of its verbs.
func (l *limited) everyVerb() {
	l.t.Helper()
	path := limitsFile(l.t, accessLimits)
	l.run(0, "import", "-replace", path)
	l.busy()
	ran := map[string]bool{"import": true, "diff": true, "check": true} // the last needs no Redis
	for _, words := range []string{
		"list", "export", "history", "show payments/acme", "show payments/*", "reset payments/acme",
		"set payments/acme tenant limit=9", "set payments/acme tenant limit=8 -for 1h", "assign payments owner=team", "remove payments account",
		"tier payments/acme gold", "tier payments", "unset payments", "pause payments -for 1h", "resume payments", "pause payments/acme", "drain payments", "unset", "rollback 3",
		"open payments/acme -for 1h", "close payments/acme", "replay redis -draft " + path,
	} {
		l.run(0, strings.Fields(words)...)
		ran[strings.Fields(words)[0]] = true
	}
	l.run(1, "diff", path)
	for _, c := range newLimits(noEnv).Commands() {
		if !ran[c.Name()] {
			l.t.Errorf("%s was not run", c.Name())
		}
	}
}

// busy has units spent, tasks waiting, and an API that refuses calls.
func (l *limited) busy() {
	l.t.Helper()
	_, addr, _ := strings.Cut(l.url, "@")
	rdb := open(l.t, "redis://"+addr)
	policy, err := limitsyaml.Parse("limits.yaml", []byte(accessLimits))
	must(l.t, err)
	limiter, err := throttle.New(rdb, policy, throttle.Config{})
	must(l.t, err)
	for i := range 10 {
		_, err := limiter.Decide(l.t.Context(), throttle.Request{Scope: "payments/acme", Waiter: throttle.Waiter{Queue: "default", ID: fmt.Sprint("t", i)}})
		must(l.t, err)
	}
	_, err = limiter.Report(l.t.Context(), "payments/acme", upstream.Hint{Limited: true})
	must(l.t, err)
	enqueue(l.t, rdb, queue.Task{Type: "work", ID: "one", Scope: "payments/acme"})
	_, err = demand.ToRedis(rdb, "", 1<<20).Write([]byte(`{"scope":"payments/acme","wanted":1}` + "\n"))
	must(l.t, err)
}
