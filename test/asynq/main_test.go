// Package asynq holds what docs/asynq.md says of asynq itself, and of what a user sees in it: asynq's counters, states and
// errors, read with asynq's own Inspector.
package asynq

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/queue"
	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/worker"
)

func TestMain(m *testing.M) { os.Exit(redistest.Main(m)) }

var must = redistest.Must

// bound is how long a test waits for what must happen.
var bound = redistest.Stretch(2 * time.Minute)

// scene is a Redis with asynq on it, and Headway under one rule.
type scene struct {
	t         *testing.T
	rdb       *redis.Client
	client    *asynq.Client
	inspector *asynq.Inspector
	limiter   *throttle.Limiter
	limits    *worker.Middleware
}

func newScene(t *testing.T, rule policy.Rule, cfg worker.MiddlewareConfig) *scene {
	t.Helper()
	rdb := redistest.NewServer(t).Client(t)
	policy, err := policy.New(policy.UnmatchedDeny, map[string]policy.ScopeConfig{"api": {Rules: []policy.Rule{rule}}})
	must(t, err)
	s := &scene{
		t: t, rdb: rdb, client: asynq.NewClientFromRedisClient(rdb), inspector: asynq.NewInspectorFromRedisClient(rdb),
	}
	s.limiter, err = throttle.New(rdb, policy, throttle.Config{})
	must(t, err)
	cfg.Redis, cfg.Limiter = rdb, s.limiter
	s.limits, err = worker.NewMiddleware(cfg)
	must(t, err)
	return s
}

// quick is cfg with short intervals, so that tests need not wait for asynq's.
func quick(cfg asynq.Config) asynq.Config {
	cfg.LogLevel, cfg.TaskCheckInterval, cfg.DelayedTaskCheckInterval = asynq.FatalLevel, 20*time.Millisecond, 100*time.Millisecond
	return cfg
}

// add enqueues with asynq alone; the scope is in a header.
func (s *scene) add(id string, opts ...asynq.Option) {
	s.t.Helper()
	task := asynq.NewTaskWithHeaders("call", []byte(id), map[string]string{queue.HeaderScope: "api"})
	_, err := s.client.EnqueueContext(s.t.Context(), task, append(opts, asynq.TaskID(id))...)
	must(s.t, err)
}

// serve runs handler under the limits until the test ends.
func (s *scene) serve(cfg asynq.Config, handler func(context.Context, *asynq.Task) error) {
	s.t.Helper()
	server := s.limits.NewServer(quick(cfg))
	must(s.t, server.Start(asynq.HandlerFunc(handler)))
	s.t.Cleanup(server.Shutdown)
}

func (s *scene) until(what string, cond func() bool) {
	s.t.Helper()
	redistest.WaitFor(s.t, what, bound, cond)
}

// info returns what asynq knows of a task, nil when nothing.
func (s *scene) info(id string) *asynq.TaskInfo {
	info, err := s.inspector.GetTaskInfo("default", id)
	if err != nil {
		return nil
	}
	return info
}

// counters returns asynq's own figures for the queue.
func (s *scene) counters() *asynq.QueueInfo {
	s.t.Helper()
	info, err := s.inspector.GetQueueInfo("default")
	must(s.t, err)
	return info
}

func sliding(limit int64, per time.Duration) policy.Rule {
	return policy.Rule{Name: "rule", Algorithm: policy.SlidingWindow, Limit: limit, Per: per}
}
