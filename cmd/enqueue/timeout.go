package main

import (
	"fmt"
	"time"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/queue"
)

// timeoutNote warns once of a task whose timeout is longer than workers let a run take.
type timeoutNote struct {
	most time.Duration
	told bool
}

// warning is empty where there is nothing to tell. Who enqueues need not know the workers' flag, so it is
// no more than that.
func (n *timeoutNote) warning(r queue.Result) string {
	if n.told || r.Timeout <= n.most || r.State != queue.Enqueued && r.State != queue.Valid {
		return ""
	}
	n.told = true
	return fmt.Sprintf("the timeout of %s is %s, but workers end a run after %s; if their -max-timeout is longer, give it to enqueue too\n",
		cli.Quote(r.ID), r.Timeout, n.most)
}
