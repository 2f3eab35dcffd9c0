// Package page is a page for people about running limits: who waits, why, until when, who used it together, and what a change
// would do before it is made.
//
//	handler, err := page.New(page.Config{Redis: rdb, Prefix: "/limits", Identify: whoAsks})
//	mux.Handle("/limits/", handler)
//
// Everything that it shows and does, it asks of the service that the program worker asks, so both say the same words, and rights
// are checked there. It is one http.Handler without files of its own beside it: templates, style and script are embedded, and
// nothing is fetched from elsewhere. It works without JavaScript; with it, it is live.
//
// Redis is read once a second for all viewers together, with at most 50 commands, and not at all while nobody looks.
package page
