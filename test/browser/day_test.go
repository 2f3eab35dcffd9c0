package browser

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/throttle/upstream"
	"github.com/headway-go/headway/throttle/usage"
)

// flows are the applications that spend all day long: at night the least tasks a minute, and in the afternoon the most.
var flows = []struct {
	app, scope  string
	by          usage.By
	least, most float64
}{
	{"billing", "payments/acme", usage.By{Queue: "default", Type: "charge", EnqueuedBy: "shop"}, 22, 30},
	{"billing", "payments/acme", usage.By{Queue: "bulk", Type: "refund", EnqueuedBy: "shop"}, 4, 8},
	{"reports", "payments/acme", usage.By{Queue: "bulk", Type: "statement"}, 2, 4},
	{"billing", "payments/globex", usage.By{Queue: "default", Type: "charge", EnqueuedBy: "shop"}, 10, 70},
	{"billing", "payments/initech", usage.By{Queue: "default", Type: "charge", EnqueuedBy: "shop"}, 2, 25},
	{"web", "search", usage.By{Queue: "default", Type: "index"}, 2, 14},
	{"assistant", "llm", usage.By{Queue: "default", Type: "summary"}, 8, 55},
	{"web", "maps", usage.By{Queue: "default", Type: "geocode"}, 40, 300},
	{"notify", "sms", usage.By{Queue: "default", Type: "code"}, 3, 28},
	{"notify", "mail", usage.By{Queue: "bulk", Type: "newsletter"}, 1, 8},
}

// day records a day of traffic, the last quarter of an hour by ten seconds, and what APIs answered meanwhile.
func (s *site) day() {
	s.t.Helper()
	ends := time.Now()
	at := ends.Add(-25 * time.Hour)
	recorders := map[string]*usage.Recorder{}
	for _, f := range flows {
		r, err := usage.New(s.rdb, usage.Config{App: f.app, Now: func() time.Time { return at }})
		must(s.t, err)
		recorders[f.app] = r
	}
	random, trial := rand.New(rand.NewPCG(2, 24)), &throttle.RuleInfo{Scope: "payments/acme", Rule: "trial"}
	for at.Before(ends) {
		step := 10 * time.Minute
		if ends.Sub(at) <= time.Hour {
			step = 10 * time.Second
		}
		at = at.Add(step)
		busy := math.Pow(math.Sin(math.Pi*(float64(at.UTC().Hour())+20)/24), 2) // at 16:00 UTC the most
		for _, f := range flows {
			n := int((f.least+(f.most-f.least)*busy)*step.Minutes()*(.86+.24*random.Float64()) + random.Float64())
			for i := range n {
				recorders[f.app].Spent(f.scope, f.by, 1)
				if f.scope == trial.Scope {
					one := throttle.Shadowed{Outcome: throttle.ShadowAllowed, RuleState: throttle.RuleState{RuleInfo: trial}}
					if i%4 == 0 {
						one.Outcome, one.Limited = throttle.ShadowDenied, true
					}
					recorders[f.app].Shadowed(one)
				}
			}
		}
		for _, r := range recorders {
			must(s.t, r.Flush(s.t.Context()))
		}
	}
	s.answers()
}

// answers has APIs answer: some of it a while ago, as docs/keys.md says how it is kept, and some now.
func (s *site) answers() {
	s.t.Helper()
	past := func(level string, ago, lasted time.Duration, fields map[string]any) {
		at := time.Now().Add(-ago)
		fields["at"], fields["until"] = at.UnixMicro(), at.Add(lasted).UnixMicro()
		text, err := json.Marshal(fields)
		must(s.t, err)
		provider, below, _ := strings.Cut(level, " ")
		key := "hw:{" + provider + "}" + below + "!answers"
		must(s.t, s.rdb.ZAdd(s.t.Context(), key, redis.Z{Score: float64(at.UnixMicro()), Member: text}).Err())
	}
	refused := func(status int, retry time.Duration) map[string]any {
		return map[string]any{"what": "pause", "status": status, "retry": retry.Microseconds(), "host": "api.acme.example:443"}
	}
	past("payments /acme", 11*time.Minute+12*time.Second, 30*time.Second, refused(429, 30*time.Second))
	past("payments /acme", 4*time.Minute+31*time.Second, 20*time.Second, refused(429, 20*time.Second))
	past("payments /acme", 6*time.Hour+3*time.Minute, time.Minute, refused(503, time.Minute))
	past("llm", 2*time.Hour, 8*time.Second, map[string]any{"what": "pause", "status": 429, "host": "llm.example:443"})
	for scope, hint := range map[string]upstream.Hint{
		"llm": {Limited: true, Status: 429, Retry: 3 * time.Minute, RetryKnown: true, Host: "llm.example:443"},
		"search": {Host: "search.example:443", Quotas: []upstream.Quota{
			{Unit: "requests", Limit: 600, Remaining: 417, Reset: 40 * time.Minute, Window: time.Hour},
		}},
	} {
		if out, err := s.limiter.Report(s.t.Context(), scope, hint); err != nil || !out.Changed {
			s.t.Fatalf("%+v, %v", out, err)
		}
	}
	for i := range 46 {
		_, err := s.client.Enqueue(s.t.Context(), queue.Task{Type: "code", ID: fmt.Sprint("code-", i), Scope: "sms"})
		must(s.t, err)
	}
}

// changes publishes the limits and changes them, in the last day.
func changes(t *testing.T, rdb *redis.Client, p *policy.Policy) {
	t.Helper()
	at := func(ago time.Duration) *policystore.Store {
		client := redis.NewClient(rdb.Options())
		t.Cleanup(func() { _ = client.Close() })
		client.AddHook(redistest.Each(func(cmd redis.Cmder, send func() error) error {
			err := send()
			if clock, is := cmd.(*redis.TimeCmd); is {
				clock.SetVal(clock.Val().Add(-ago))
			}
			return err
		}))
		return policystore.New(client, policystore.Config{})
	}
	_, _, err := at(26*time.Hour).PublishFile(t.Context(), "deploy-7", p, false)
	must(t, err)
	for _, edit := range []struct {
		ago                      time.Duration
		by, reason, scope, limit string
	}{
		{20*time.Hour + 12*time.Minute, "ben", "contract of November", "maps quota", "900"},
		{5*time.Hour + 3*time.Minute, "anna", "acme answered 429: less until they have raised it", "payments/acme tenant", "50"},
		{3*time.Hour + 41*time.Minute, "carl", "", "sms plan", "45"},
	} {
		scope, rule, _ := strings.Cut(edit.scope, " ")
		by := policystore.Edit{By: edit.by, Reason: edit.reason}
		_, err := at(edit.ago).Set(t.Context(), by, scope, rule, map[string]string{"limit": edit.limit})
		must(t, err)
	}
}

// behind has some more tasks wait behind the pause.
func (s *site) behind() {
	s.t.Helper()
	redistest.WaitAsking(s.t, "the pause to be in force", 15*time.Second, func() bool {
		v, err := s.store.Current(s.t.Context())
		must(s.t, err)
		in, err := s.store.InForceIn(s.t.Context(), v)
		return err == nil && in <= 0
	})
	for i := range 18 {
		_, err := s.client.Enqueue(s.t.Context(), queue.Task{Type: "newsletter", ID: fmt.Sprint("issue-", i), Scope: "mail", Queue: "bulk"})
		must(s.t, err)
	}
	redistest.WaitAsking(s.t, "the workers to be done with what can start", 30*time.Second, func() bool {
		left := int64(0)
		for _, name := range []string{"default", "bulk"} {
			left += s.rdb.LLen(s.t.Context(), "asynq:{"+name+"}:pending").Val() + s.rdb.LLen(s.t.Context(), "asynq:{"+name+"}:active").Val()
		}
		return left == 0
	})
}

// archived has some tasks in asynq's archive, of a queue that no worker serves.
func (s *site) archived() {
	s.t.Helper()
	client := asynq.NewClientFromRedisClient(s.rdb)
	for i := range 3 {
		task := asynq.NewTaskWithHeaders("invoice", nil, map[string]string{queue.HeaderScope: "payments/acme"})
		_, err := client.Enqueue(task, asynq.TaskID(fmt.Sprint("failed-", i)), asynq.Queue("nightly"))
		must(s.t, err)
	}
	_, err := asynq.NewInspectorFromRedisClient(s.rdb).ArchiveAllPendingTasks("nightly")
	must(s.t, err)
}
