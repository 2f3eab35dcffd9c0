// Package wallclock computes when a cron expression is due in a time zone.
//
// robfig/cron parses the expression and finds the times that match it, on a clock that never shifts;
// this package maps those to real moments. There are two ways to do so, and the hour field selects
// one, as in cron daemons:
//
//   - An expression that names hours ("30 2 * * *", "0 8-18 * * *", @daily)
//     means times of day. Each is due once, at the first moment at which the
//     clocks of the zone show it or have passed it: the first time, if they
//     show it twice, and the end of the gap, if they skip it. Times that fall
//     into one gap are due together, as one run.
//   - An expression whose hour field begins with a star ("*/15 * * * *",
//     "0 */2 * * *", @hourly) means real time. It is due at every moment at which
//     the clocks show a time that matches: an hour that comes twice counts twice,
//     and one that is skipped not at all.
//
// A [Window] differs from both: it is all minutes that match, as clocks show them.
//
// The zone data is that of the system if it has any, and otherwise that embedded in the program.
package wallclock
