package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/worker/control"
)

// clear prints how many tasks wait in a scope and below it, and cancels them in steps until none is left of
// those that waited then.
func (c *tasksCommand) clear(ctx context.Context, service *control.Service, who control.Actor) error {
	n, err := service.Count(ctx, who, c.change)
	if err != nil {
		return err
	}
	least := ""
	if n.More {
		least = "at least "
	}
	if _, err := fmt.Fprintf(c.errs, "%s: cancelling %s%s of %s and below it\n", prog, least, counted(int(n.Tasks), "task", "tasks"), cli.Quote(c.change.Scope)); err != nil {
		return err
	}
	c.change.Before = n.At
	all, tasks := control.TasksDone{Left: map[control.Outcome]int{}}, 0
	for {
		var done control.TasksDone
		done, err = service.ApplyTasks(ctx, who, c.change)
		if printErr := c.printTasks(done.Tasks); err == nil {
			err = printErr
		}
		all.Changed, all.More, tasks = all.Changed+done.Changed, done.More, tasks+len(done.Tasks)
		for why, n := range done.Left {
			all.Left[why] += n
		}
		if err != nil || done.Changed == 0 { // a queue that moved up during a step is found by the next
			break
		}
	}
	if printErr := c.printSum(all, tasks); err == nil {
		err = printErr
	}
	if err == nil && all.More {
		err = errSomeLeft
	}
	if ctxErr := ctx.Err(); ctxErr != nil {
		return errors.Join(ctxErr, err)
	}
	return err
}
