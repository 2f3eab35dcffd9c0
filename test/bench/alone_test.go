package bench

import (
	"context"
	"net/http"
	"os"
	"strconv"
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
	b.Run(label(s.name)+"/"+asynqAlone.name, func(b *testing.B) {
		asynqAlone.into(b, s, func(o outcome) {
			made := o.row(b)
			row := figures.NewRow(s.name, asynqAlone.name)
			row.Started, row.Tasks, row.Rate, row.Commands, row.Micros = made.Started, made.Tasks, made.Rate, made.Commands, made.Micros
			add(b, row)
			rate = row.Rate
		})
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
