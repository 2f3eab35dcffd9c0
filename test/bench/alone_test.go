package bench

import (
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/headway-go/headway/test/bench/figures"
)

// asynqAlone is asynq without limits, in programs of its own, whose handlers call the API.
var asynqAlone = contender{name: "asynq alone", outside: true, enqueue: byAsynqCalls, serve: byAloneServers}

// aloneRate adds a row of what asynq alone does with some of a scenario's tasks, and returns how many start a second.
func aloneRate(b *testing.B, s scenario) (rate float64) {
	b.Helper()
	s.tasks = s.tasks[:min(len(s.tasks), 10_000)]
	asynqAlone.into(b, s, func(o *outcome) figures.Row {
		made := o.row()
		row := figures.NewRow(s.name, asynqAlone.name)
		row.Started, row.Tasks, row.Rate, row.Commands, row.Micros = made.Started, made.Tasks, made.Rate, made.Commands, made.Micros
		rate = row.Rate
		return row
	})
	return rate
}

// byAsynqCalls enqueues tasks whose payload is the address to call.
func byAsynqCalls(st *stage) error {
	client := asynq.NewClientFromRedisClient(st.rdb)
	return each(st.tasks, func(j job) error {
		_, err := client.Enqueue(asynq.NewTask("call", []byte(st.at.URL(j.scope)+"?latency="+st.callLasts().String())), asynq.TaskID(j.id))
		return err
	})
}

// aloneVariable makes this program a server of asynq alone: the address of its Redis. The server's Concurrency is in the other.
const (
	aloneVariable = "HEADWAY_BENCH_ALONE"
	slotsVariable = "HEADWAY_BENCH_SLOTS"
)

// byAloneServers serves with copies of this program.
func byAloneServers(st *stage) (stop func() error, err error) {
	end, err := copies(max(1, st.workers), aloneVariable+"="+st.addr(), slotsVariable+"="+strconv.Itoa(st.concurrency()))
	return func() error { end(); return nil }, err
}

// alone serves until it is ended.
func alone() error {
	slots, err := strconv.Atoi(os.Getenv(slotsVariable))
	if err != nil {
		return err
	}
	calls := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 2 * slots}, Timeout: time.Minute}
	srv := asynq.NewServer(asynq.RedisClientOpt{Addr: os.Getenv(aloneVariable)}, asynq.Config{Concurrency: slots, LogLevel: asynq.FatalLevel})
	err = srv.Start(asynq.HandlerFunc(func(ctx context.Context, task *asynq.Task) error {
		id, _ := asynq.GetTaskID(ctx)
		return callOf(ctx, calls, string(task.Payload()), id)
	}))
	if err != nil {
		return err
	}
	waitForEnd()
	return nil
}

// hogVariable makes this program one that does nothing but use a processor.
const hogVariable = "HEADWAY_BENCH_HOG"

// hog uses a processor until its standard input ends.
func hog() {
	var ended atomic.Bool
	go func() {
		waitForEnd()
		ended.Store(true)
	}()
	for !ended.Load() {
	}
}

// hogs starts n programs that each use a processor, and returns what ends them.
func hogs(t testing.TB, n int) (end func()) {
	t.Helper()
	end, err := copies(n, hogVariable+"=1")
	must(t, err)
	return end
}

// waitForEnd returns when the program that started this one ends it, or is gone.
func waitForEnd() { _, _ = io.Copy(io.Discard, os.Stdin) }

// copies starts this program n times more, with variables that say what to do until waitForEnd, and returns what ends them.
func copies(n int, variables ...string) (end func(), err error) {
	var ends []func()
	end = func() {
		for _, end := range ends {
			end()
		}
	}
	for range n {
		cmd := exec.Command(os.Args[0]) //nolint:gosec // this program
		cmd.Env, cmd.Stderr = append(os.Environ(), variables...), os.Stderr
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			end()
			return nil, err
		}
		ends = append(ends, func() {
			_ = in.Close()
			_ = cmd.Wait()
		})
	}
	return end, nil
}
