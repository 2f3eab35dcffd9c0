package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/headway-go/headway/cmd/internal/cli"
	"github.com/headway-go/headway/throttle/policystore"
)

// chainReport is what verify prints; docs/json.md has its fields.
type chainReport struct {
	Oldest int64  `json:"oldest"`
	Newest int64  `json:"newest"`
	Sound  int    `json:"sound"`
	Hash   string `json:"hash"`
	Noted  int64  `json:"noted,omitempty"`
	Unfit  int64  `json:"unfit,omitempty"`
	Error  string `json:"error,omitempty"`
}

// verify checks that the history is what was written.
func (c *limitsCommand) verify(ctx context.Context) error {
	chain, err := c.store.Verify(ctx, c.hash)
	r := chainReport{Oldest: chain.Oldest, Newest: chain.Newest, Sound: chain.Sound, Hash: chain.Hash, Noted: chain.Noted}
	var fault *policystore.ChainError
	if errors.As(err, &fault) {
		r.Unfit, r.Error = fault.Version, plainly(err)
		if err := c.printJSON(r); err != nil {
			return err
		}
		return &cli.Error{What: plainly(err), Try: "worker limits history; docs/operations.md says who may write the key", Err: err}
	}
	if err != nil {
		return err
	}
	line := fmt.Sprintf("%s sound, from version %d to %d\n", counted(chain.Sound, "version is", "versions are"), r.Oldest, r.Newest)
	if r.Noted > 0 {
		line += fmt.Sprintf("version %d has the hash that was noted: nothing up to it was rewritten\n", r.Noted)
	}
	return c.print(r, line+"newest hash: "+r.Hash)
}

func counted(n int, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return strconv.Itoa(n) + " " + more
}

// author is who made something: by is what was said, and user whom Redis knows.
func author(by, user string) string {
	if user == "" {
		user = "unknown"
	}
	return asLabel(by) + " (user " + asLabel(user) + ")"
}

// asLabel is Quote, and quotes besides what looks like the rest of an author.
func asLabel(name string) string {
	if text := cli.Quote(name); text != name || !strings.ContainsAny(name, `()"#`) {
		return text
	}
	return strconv.Quote(name)
}
