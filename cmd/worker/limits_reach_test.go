package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/headway-go/headway/test/redistest"
	"github.com/headway-go/headway/throttle"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/policystore"
	"github.com/headway-go/headway/worker"
)

// serves runs an asynq server until the test ends.
func serves(t *testing.T, limits *worker.Limits) {
	t.Helper()
	server := limits.NewServer(asynq.Config{Concurrency: 1})
	must(t, server.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })))
	t.Cleanup(server.Shutdown)
}

// processesAre waits until so many processes are known.
func (l *limited) processesAre(rdb redis.UniversalClient, n int) {
	l.t.Helper()
	redistest.WaitAsking(l.t, "the processes to be known", bound, func() bool {
		list, err := policystore.New(rdb, policystore.Config{}).Processes(l.t.Context())
		return err == nil && len(list) == n
	})
}

// docs/limits.md: "A change says in which processes it is in force, and which do not follow."
func TestChangeSaysWhereItIsInForce(t *testing.T) {
	t.Parallel()
	l := newLimited(t)
	rdb := open(t, l.url)
	host, err := os.Hostname()
	must(t, err)
	out, _ := l.run(0, "set", "payments", "account", "limit=100")
	says(t, out, "\n  no running process follows these limits\n")

	// An asynq server of which nothing is known, as of a program without Headway.
	bare := asynq.NewServerFromRedisClient(rdb, asynq.Config{Concurrency: 1, LogLevel: asynq.FatalLevel})
	must(t, bare.Start(asynq.HandlerFunc(func(context.Context, *asynq.Task) error { return nil })))
	defer bare.Shutdown()
	redistest.WaitAsking(t, "the server to be known", bound, func() bool {
		servers, err := asynq.NewInspectorFromRedisClient(rdb).Servers()
		return err == nil && len(servers) == 1
	})
	out, _ = l.run(0, "set", "payments", "account", "limit=101")
	says(t, out, "\n  no running process follows these limits; 1 asynq server not known to follow: "+host+" (pid "+strconv.Itoa(os.Getpid())+")\n")

	// Two workers, a program that follows, and one that does not.
	quiet := slog.New(slog.DiscardHandler)
	for range 2 {
		limits, err := worker.New(rdb, worker.Config{App: "mail", NoMetrics: true, Logger: quiet})
		must(t, err)
		serves(t, limits)
	}
	fixed, err := worker.New(rdb, worker.Config{App: "billing", NoFollow: true, NoMetrics: true, Logger: quiet})
	must(t, err)
	serves(t, fixed)
	p, err := policy.New(policy.UnmatchedDeny, nil)
	must(t, err)
	limiter, err := throttle.New(rdb, p, throttle.Config{})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	var web sync.WaitGroup
	web.Go(func() {
		policystore.Follow(ctx, policystore.New(rdb, policystore.Config{}), limiter, policystore.FollowConfig{App: "web"})
	})
	defer web.Wait()
	defer cancel()
	l.processesAre(rdb, 4)
	const all = "in force in 2 workers and 1 other process; 1 of an app that does not follow: billing@"
	for _, command := range []string{"pause payments", "resume payments", "set payments account limit=9", "assign payments owner=anna", "remove payments account", "unset payments", "rollback 2"} {
		out, _ = l.run(0, strings.Fields(command)...)
		says(t, out, "\n  "+all+host+"\n")
	}
	out, _ = l.run(0, "show", "payments/acme")
	says(t, out, "\nversion 10: "+all+host+"\n")

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
	out, _ = l.run(0, "show", "payments/*")
	says(t, out, "; not yet in 1, or ended: mail@web-9 at version 3; 1 of an app that does not follow: ")
}
