package browser

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/chromedp"
	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/queue/schedule"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/limitsyaml"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker"
	"github.com/headway-go/headway/worker/page"
)

const limits = `limits:
  payments:
    owner: team-pay
    rules:
      - {name: account, algorithm: sliding-window, limit: 200, per: 1m}
      - {name: daily, algorithm: calendar, limit: 200000, resets: "0 0 * * *", timezone: America/Los_Angeles}
    scopes:
      "*":
        rules:
          - {name: tenant, algorithm: token-bucket, limit: 2, per: 1s, burst: 5}
          - {name: parallel, algorithm: concurrency, limit: 4}
          - {name: trial, algorithm: sliding-window, limit: 30, per: 1m, shadow: true}
      acme:
        owner: team-acme
        rules:
          - {name: tenant, algorithm: sliding-window, limit: 60, per: 1m}
          - {name: daytime, algorithm: sliding-window, limit: 40, per: 1m, active: "* 7-18 * * *"}
  search:
    owner: team-search
    rules: [{name: plan, algorithm: fixed-window, limit: 1000, per: 1h}]
  llm:
    rules:
      - {name: requests, algorithm: sliding-window, limit: 60, per: 1m}
      - {name: tokens, algorithm: token-bucket, limit: 90000, per: 1m, burst: 9000, unit: tokens}
  mail:
    rules: [{name: hourly, algorithm: fixed-window, limit: 500, per: 1h}]
  maps:
    owner: team-web
    rules: [{name: quota, algorithm: token-bucket, limit: 600, per: 1m, burst: 60}]
  sms:
    owner: team-notify
    rules: [{name: plan, algorithm: sliding-window, limit: 30, per: 1m}]
  legacy:
    rules: [{name: off, algorithm: sliding-window, limit: 0, per: 1s}]
`

const schedules = `schedules:
  nightly-report:
    cron: "0 6 * * 1-5"
    timezone: America/Los_Angeles
    jitter: 5m
    task: {type: statement, scope: payments/acme, queue: bulk}
  reindex:
    cron: "*/20 * * * *"
    task: {type: index, scope: search}
  weekly-letter:
    cron: "0 9 * * 1"
    timezone: Europe/Berlin
    task: {type: newsletter, scope: mail, queue: bulk}
`

// site is a page with a live worker behind it.
type site struct {
	t       testing.TB
	rdb     *redis.Client
	store   *policystore.Store
	limiter *throttle.Limiter
	client  *queue.Client
	url     string
}

// newSite returns a site with a past: what happened before the worker began.
func newSite(t testing.TB, past ...func(*redis.Client, *policy.Policy)) *site {
	t.Helper()
	p, err := limitsyaml.Parse("limits.yaml", []byte(limits))
	must(t, err)
	s := &site{t: t, rdb: redistest.NewServer(t).Client(t)}
	for _, happened := range past {
		happened(s.rdb, p)
	}
	running, err := worker.New(s.rdb, worker.Config{
		Limits: p, App: "billing", By: "deploy-7", Logger: slog.New(slog.DiscardHandler), NoMetrics: true,
	})
	must(t, err)
	server := running.NewServer(asynq.Config{Concurrency: 10, Queues: map[string]int{"default": 3, "bulk": 1}, LogLevel: asynq.FatalLevel})
	must(t, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })))
	t.Cleanup(server.Shutdown)
	limiter, err := throttle.New(s.rdb, p, throttle.Config{})
	must(t, err)
	s.limiter = limiter
	s.store = policystore.New(s.rdb, policystore.Config{})
	s.client = queue.NewClient(s.rdb, queue.ClientConfig{Limiter: limiter, App: "shop"})
	runs, err := schedule.Parse("schedules.yaml", []byte(schedules))
	must(t, err)
	handler, err := page.New(page.Config{Redis: s.rdb, Local: "anna", Schedules: runs.Schedules})
	must(t, err)
	front := httptest.NewServer(handler)
	t.Cleanup(front.Close)
	s.url = front.URL
	return s
}

// fill has tasks wait, some run, and a provider that is paused.
func (s *site) fill() {
	s.t.Helper()
	add := func(scope string, n int, change func(*queue.Task, int)) {
		for i := range n {
			t := queue.Task{Type: "charge", ID: fmt.Sprintf("%s-%d", scope[max(0, len(scope)-4):], i), Scope: scope, Payload: []byte(`{"amount":100}`)}
			if change != nil {
				change(&t, i)
			}
			if r, err := s.client.Enqueue(s.t.Context(), t); err != nil || r.State != queue.Enqueued {
				s.t.Fatalf("%+v, %v", r, err)
			}
		}
	}
	add("payments/acme", 200, func(t *queue.Task, i int) {
		if i%3 == 0 {
			t.Queue = "bulk"
		}
	})
	add("payments/globex", 60, nil)
	add("payments/initech", 25, nil)
	add("search", 40, nil)
	add("llm", 90, func(t *queue.Task, i int) {
		t.Costs = map[string]int64{"requests": 1, "tokens": int64(200 + 37*i%2000)}
	})
	add("legacy", 7, nil)
	edit := policystore.Edit{By: "anna", Reason: "bounces: waiting for the provider", For: 2 * time.Hour}
	_, err := s.store.Pause(s.t.Context(), edit, "mail")
	must(s.t, err)
	add("mail", 12, nil)
	edit = policystore.Edit{By: "ben", Reason: "they bought more"}
	_, err = s.store.Set(s.t.Context(), edit, "payments/globex", "tenant", map[string]string{"limit": "4"})
	must(s.t, err)
}

// closeBrowser ends the Chromium of this package's tests.
var closeBrowser = func() {}

// chromium starts the Chromium that all tests share, each with a tab of its own.
var chromium = sync.OnceValues(func() (context.Context, error) {
	path := ""
	for _, name := range []string{os.Getenv("CHROMIUM"), "chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil && name != "" {
			path = found
			break
		}
	}
	if path == "" {
		return nil, errors.New("there is no chromium\ntry: test/setup.sh -browser, or CHROMIUM=/path/to/chromium")
	}
	dir, err := os.MkdirTemp("", "headway-browser-")
	if err != nil {
		return nil, err
	}
	options := []chromedp.ExecAllocatorOption{
		chromedp.ExecPath(path), chromedp.UserDataDir(dir), chromedp.WindowSize(1280, 900), chromedp.WSURLReadTimeout(redistest.Stretch(time.Minute)),
	}
	for _, flag := range []string{
		"headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "no-default-browser-check", "disable-background-networking",
		"disable-component-update", "disable-sync", "hide-scrollbars", "mute-audio",
	} {
		options = append(options, chromedp.Flag(flag, true))
	}
	alloc, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, end := chromedp.NewContext(alloc)
	closeBrowser = func() {
		end()
		stop()
		_ = os.RemoveAll(dir) // it is temporary
	}
	return ctx, chromedp.Do(ctx)
})

// tab opens a tab.
func tab(t testing.TB) context.Context {
	t.Helper()
	browser, err := chromium()
	if err != nil {
		t.Fatalf("chromium does not start: %v", err)
	}
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	do(t, ctx)
	ctx, cancel = context.WithTimeout(ctx, redistest.Stretch(5*time.Minute))
	t.Cleanup(cancel)
	return ctx
}

// do takes steps, each of which waits for what it needs.
func do(t testing.TB, ctx context.Context, steps ...chromedp.Action[chromedp.Void]) {
	t.Helper()
	must(t, chromedp.Do(ctx, steps...))
}

// eval returns what an expression is in the page.
func eval[T any](t testing.TB, ctx context.Context, expression string) T {
	t.Helper()
	got, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression, chromedp.EvalAwaitPromise))
	must(t, err)
	return got
}

// tell sends a command of the protocol.
func tell[P, R any](c cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, c, params)
		return err
	})
}

func visible(selector string) chromedp.Action[chromedp.Void] {
	return chromedp.WaitVisible(chromedp.CSS(selector))
}

func click(selector string) chromedp.Action[chromedp.Void] {
	return chromedp.Click(chromedp.CSS(selector))
}

// must ends the test at an error.
var must = redistest.Must
