package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/internal/diag"
	"github.com/headway-go/headway/throttle/demand"
	"github.com/headway-go/headway/throttle/policy"
	"github.com/headway-go/headway/throttle/replay"
)

const replayLong = `Runs the demand that workers recorded with -record against a draft of limits.yaml, and
prints each scope's waits under the draft (WAIT) beside those that were (WAS), the units
that start in the time of the record (USED), the tasks that the draft never admits
(REFUSED), and the rule that most of them wait for. It asks no Redis, unless a RECORD is
"redis": the record of all workers there. Records of several workers are taken together.

Below stands what the record cannot know. To see how exact a replay is, replay the limits
that were in force. docs/replay.md explains both.`

// replaySum is the last line of "worker limits replay -json"; docs/json.md has its fields. Each other line is a replay.Scope.
type replaySum struct {
	Summary bool `json:"summary"`
	Scopes  int  `json:"scopes"`
	replay.Report
}

func (l *limitsCommand) replay() *cobra.Command {
	c := &cobra.Command{
		Use: "replay -draft FILE RECORD…", Short: "What the recorded demand would have met under the limits of FILE", Long: replayLong, Args: cli.Args(1, cli.AnyNumber),
		Example: "  worker limits replay -draft draft.yaml /var/lib/headway/*.ndjson.gz\n  worker limits replay -draft draft.yaml redis -json",
	}
	c.RunE = func(c *cobra.Command, words []string) error {
		if l.draft == "" {
			return cli.Usage(cli.Errorf("worker limits replay -draft draft.yaml RECORD", "-draft is missing: the limits to try"))
		}
		if slices.Contains(words, inRedis) {
			return l.online(l.replayRecords)(c, words)
		}
		return l.offline(func(words []string) error { return l.replayRecords(c.Context(), words) })(c, words)
	}
	c.Flags().StringVar(&l.draft, "draft", "", "`FILE` with the limits to try")
	c.Flags().BoolVar(&l.all, "all", false, "print every scope, not just the twenty that change most")
	return c
}

func (l *limitsCommand) replayRecords(ctx context.Context, words []string) error {
	draft, err := readLimits(l.draft)
	if err != nil {
		return err
	}
	record := replay.NewRecord()
	for _, word := range words {
		if err := l.readRecord(ctx, record, word); err != nil {
			return err
		}
	}
	note := `which names have the tiers of the draft is in no record, and the rules of "*" were tried; "worker limits replay redis" asks Redis`
	if slices.Contains(words, inRedis) {
		draft = l.store().WithTiers(ctx, draft)
		note = `names have the tiers that Redis has for them now; for names whose tier your database has, the rules of "*" were tried`
	}
	r := replay.Run(record, draft)
	if r.Tasks == 0 {
		return cli.Errorf("worker -limits limits.yaml -record "+cli.Quote(words[0]), "no task is recorded in %s", cli.QuoteList(words))
	}
	if draft.Tiered() {
		r.Unknown = append(r.Unknown, note)
	}
	l.printReplay(r)
	return nil
}

// readRecord adds a file, or the record in Redis.
func (l *limitsCommand) readRecord(ctx context.Context, record *replay.Record, word string) error {
	in := io.Reader(nil)
	if word == inRedis {
		in = demand.FromRedis(ctx, l.rdb, "")
	} else {
		file, err := os.Open(word)
		if err != nil {
			return noRecord(word, err)
		}
		defer func() { _ = file.Close() }() // nothing was written
		in = file
	}
	err := record.Read(in)
	switch {
	case errors.As(err, new(*demand.LineError)):
		return &cli.Error{What: word + " is no record of demand: " + err.Error(), Try: "a file that worker -record has written", Err: err}
	case errors.Is(err, replay.ErrTooMany):
		return &cli.Error{What: plainly(err), Try: "fewer files, or -record-sample", Err: err}
	case errors.Is(err, replay.ErrTwice):
		return &cli.Error{What: word + ": " + plainly(err), Try: "each record once, copies aside", Err: err}
	case err != nil && word != inRedis:
		return noRecord(word, err)
	}
	return err
}

// noRecord says why a file cannot be read, and what may be meant.
func noRecord(path string, err error) error {
	e := &cli.Error{What: "cannot read the record: " + err.Error(), Err: err}
	like := fileLike(path)
	switch {
	case errors.Is(err, syscall.EISDIR):
		e.Try = path + "/*.ndjson.gz"
	case !errors.Is(err, os.ErrNotExist):
	case diag.Nearest(path, []string{inRedis}) != "":
		e.What, e.Try = "there is no record "+path, inRedis
	case strings.HasPrefix(like, "ls "):
		e.What, e.Try = "there is no record "+path, "worker -record "+cli.Quote(path)
	default:
		e.What, e.Try = "there is no record "+path, like
	}
	return e
}

func (l *limitsCommand) printReplay(r replay.Report) {
	const few = 20
	shown := r.Scopes
	if l.json {
		for _, s := range shown {
			l.out.Print(s, "")
		}
		l.out.Print(replaySum{true, len(r.Scopes), r}, "")
		return
	}
	by := ""
	if r.Workers > 0 {
		by = fmt.Sprintf(", by %s with %s", cli.Count(r.Workers, "worker", "workers"), cli.Count(r.Slots, "slot", "slots"))
	}
	l.out.Text(fmt.Sprintf("recorded: %s of %s, from %s to %s%s\n", cli.Count(r.Tasks, "task", "tasks"), cli.Count(len(r.Scopes), "scope", "scopes"), stamp(r.From), stamp(r.To), by))
	if !l.all {
		shown = shown[:min(few, len(shown))]
	}
	l.out.Table(replayTable(shown))
	if more := len(r.Scopes) - len(shown); more > 0 {
		l.out.Text(fmt.Sprintf("\n%s more, which change less: -all prints them", cli.Count(more, "scope", "scopes")))
	}
	if len(r.Unknown) > 0 {
		l.out.Text("\nWhat the record cannot tell:\n- " + strings.Join(r.Unknown, "\n- "))
	}
}

// replayTable has a line for each scope, and two columns for each unit.
func replayTable(scopes []replay.Scope) (head []string, rows [][]string) {
	units := map[string]bool{}
	for _, s := range scopes {
		for unit := range s.Used {
			units[unit] = true
		}
		for unit := range s.UsedWas {
			units[unit] = true
		}
	}
	delete(units, policy.Requests)
	names := append([]string{policy.Requests}, slices.Sorted(maps.Keys(units))...)
	head = []string{"SCOPE", "TASKS", "WAIT P50", "P99", "WAS P50", "P99"}
	for _, unit := range names {
		if unit == policy.Requests {
			unit = "USED"
		}
		head = append(head, cli.Quote(strings.ToUpper(unit)), "WAS")
	}
	head = append(head, "REFUSED", "RULE")
	for _, s := range scopes {
		least := ""
		if s.AtLeast {
			least = "≥"
		}
		row := []string{cli.Quote(s.Scope), strconv.Itoa(s.Tasks), least + brief(s.Waits.P50), least + brief(s.Waits.P99), brief(s.Were.P50), brief(s.Were.P99)}
		for _, unit := range names {
			row = append(row, strconv.FormatInt(s.Used[unit], 10), strconv.FormatInt(s.UsedWas[unit], 10))
		}
		refused := strconv.Itoa(s.Refused)
		if s.Stuck > 0 {
			refused += fmt.Sprintf(", %d never start", s.Stuck)
		}
		rows = append(rows, append(row, refused, cli.Quote(cmp.Or(s.Rule, "-"))))
	}
	return head, rows
}

// brief is a wait for people: to the millisecond below a minute, else to the second.
func brief(d time.Duration) string {
	if d < time.Minute {
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
