package asynqx

import (
	"context"
	"testing"
	"time"

	"github.com/headway-go/headway/test/redistest"
)

// "Where asynq's keys are not known, or a server refuses the script, tasks are picked up
// once, as before."
func TestParkRefused(t *testing.T) {
	t.Parallel()
	server := redistest.NewServer(t)
	y := newYard(t, server.Client(t))
	y.add("a")
	y.Mover.rdb = server.User(t, []string{"asynq:*"}, "@all", "-zadd")
	for range 2 {
		if _, err := y.Park(context.Background(), "default", []string{"a"}, time.Now().Add(time.Hour)); err == nil {
			t.Error("it was not refused")
		}
	}
	if y.Parks() {
		t.Error("it is to be asked again at once")
	}
	y.parkAgain.Store(time.Now().UnixNano())
	if !y.Parks() {
		t.Error("it is not to be asked again")
	}
	if !y.Known || y.refused.Load() {
		t.Error("tasks are not released by the script any more")
	}
}
