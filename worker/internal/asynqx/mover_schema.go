package asynqx

import (
	"context"
	"fmt"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"
)

// What is known about asynq's keys: the releases for which TestReleases moved tasks, and the calls of
// their code that enqueue a task, schedule one, run one, run all that wait for a retry, and inspect a
// queue. These calls contain the keys of tasks, pending, scheduled and retry, and their scripts show
// what the keys contain. A release that changed any of it has other scripts.
var (
	testedReleases = []string{"v0.25.0", "v0.25.1", "v0.26.0"}
	testedSchema   = []string{
		"sadd asynq:queues",
		"98d28b42650870a743450ffda9791e9e19c6991b asynq:{q}:t:id asynq:{q}:pending id",
		"8ce6b38a99b73194585c251eb3c2a89559f37a87 asynq:{q}:t:id asynq:{q}:scheduled id",
		"sismember asynq:queues",
		"2fb646810e3433bbe85fba1a6b407eb3eced7b63 asynq:{q}:t:id asynq:{q}:pending asynq:{q}:groups id asynq:{q}: asynq:{q}:g:",
		"sismember asynq:queues",
		"1d0a1f59e02d7de4c1ffdc680ba4f5984b1a590c asynq:{q}:retry asynq:{q}:pending asynq:{q}:t:",
		"sismember asynq:queues",
		"8495598cb6d9a2efdaf2ae98021a8f4ef1803b3d asynq:{q}:pending asynq:{q}:active asynq:{q}:scheduled asynq:{q}:retry " +
			"asynq:{q}:archived asynq:{q}:completed asynq:{q}:processed:DAY asynq:{q}:failed:DAY asynq:{q}:processed " +
			"asynq:{q}:failed asynq:{q}:paused asynq:{q}:groups asynq:{q}:t: asynq:{q}:g:",
	}
)

const asynqModule = "github.com/hibiken/asynq"

// schemaFault returns why the keys of this program's asynq may differ from the known ones; nil if they
// do not. calls are the calls of its code, and info names its release, if the program knows it.
func schemaFault(info *debug.BuildInfo, calls []string) error {
	if release := linkedRelease(info); release != "" && !slices.Contains(testedReleases, release) {
		return fmt.Errorf("%s was not tested; %s were", release, strings.Join(testedReleases, ", "))
	}
	if !slices.Equal(calls, testedSchema) {
		return fmt.Errorf("it calls %q; the releases that were tested call %q", calls, testedSchema)
	}
	return nil
}

// linkedRelease returns the asynq that the program was built with: v0.26.0, or path@version of a
// module that replaces it, or "" if the program does not know, as in a test.
func linkedRelease(info *debug.BuildInfo) string {
	if info == nil {
		return ""
	}
	for _, m := range info.Deps {
		if m.Path != asynqModule {
			continue
		}
		if r := m.Replace; r != nil && r.Path != m.Path {
			return r.Path + "@" + r.Version
		} else if r != nil {
			return r.Version
		}
		return m.Version
	}
	return ""
}

// recordSchema returns the Redis calls that asynq makes, as one text each: a command or the SHA-1 of a
// script, its keys, and its text arguments.
func recordSchema() (calls []string) {
	const queue, id = "q", "id"
	w := &witness{}
	defer func() {
		if fault := recover(); fault != nil { // a call that the witness does not answer
			calls = append(w.calls, fmt.Sprint("something else: ", fault))
		}
	}()
	client, inspector := asynq.NewClientFromRedisClient(w), asynq.NewInspectorFromRedisClient(w)
	task := asynq.NewTask("type", nil, asynq.Queue(queue), asynq.TaskID(id))
	_, _ = client.Enqueue(task) // the error is irrelevant: asynq parses answers of the witness
	_, _ = client.Enqueue(task, asynq.ProcessIn(time.Hour))
	_ = inspector.RunTask(queue, id)
	_, _ = inspector.RunAllRetryTasks(queue)
	_, _ = inspector.GetQueueInfo(queue)
	return w.calls
}

// witness is a Redis client that records its calls and has no Redis. A call that it cannot answer
// panics.
type witness struct {
	redis.UniversalClient
	calls []string
}

func (w *witness) SAdd(_ context.Context, key string, _ ...any) *redis.IntCmd {
	w.calls = append(w.calls, "sadd "+key)
	return redis.NewIntResult(1, nil)
}

func (w *witness) SIsMember(_ context.Context, key string, _ any) *redis.BoolCmd {
	w.calls = append(w.calls, "sismember "+key)
	return redis.NewBoolResult(true, nil)
}

var ofDay = regexp.MustCompile(`:\d{4}-\d\d-\d\d$`)

func (w *witness) EvalSha(_ context.Context, sha string, keys []string, args ...any) *redis.Cmd {
	call := []string{sha}
	for _, key := range keys {
		call = append(call, ofDay.ReplaceAllString(key, ":DAY"))
	}
	for _, arg := range args {
		if text, ok := arg.(string); ok {
			call = append(call, text)
		}
	}
	w.calls = append(w.calls, strings.Join(call, " "))
	return redis.NewCmdResult(int64(1), nil)
}
