# Changes to the frame of Redis's test suite, for a server that is no Redis. The suite's tests/test_helper.tcl
# reads this file after its own procedures, and before it runs tests: suite.py.
#
# Each result is a line of the file that SHIM_RESULTS names: status, unit, test and text, separated by tabs.

set ::shim_results [open $::env(SHIM_RESULTS) a]
fconfigure $::shim_results -encoding utf-8
# In seconds: a test fails if a reply, or a state of the server, takes longer.
set ::shim_patience $::env(SHIM_PATIENCE)
set ::shim_protocol 2
array set ::shim_parameters {}

proc shim_result {status name text} {
    set unit [string range $::curfile [string length tests/] end-[string length .tcl]]
    set text [string map {\t " " \n " " \r " "} [string range $text 0 1000]]
    puts $::shim_results [join [list $status $unit $name $text] \t]
    flush $::shim_results
}

# The suite configures its server, and empties the library of functions. Here, this has no effect.
rename r shim_r
proc r {args} {
    switch -glob -- [string tolower [join [lrange $args 0 2]]] {
        {function flush} {return OK}
        {config set *} {
            set ::shim_parameters([lindex $args 2]) [lindex $args 3]
            return OK
        }
        {config get *} {
            set name [lindex $args 2]
            if {[info exists ::shim_parameters($name)]} {return [list $name $::shim_parameters($name)]}
        }
        {hello [23]} {set ::shim_protocol [lindex $args 1]}
    }
    uplevel 1 [list shim_r {*}$args]
}

# A missing reply fails its test. The suite would wait for it until the run is given up.
set ::redis::shim_depth 0
rename ::redis::redis_read_reply ::redis::shim_read_reply
proc ::redis::redis_read_reply {id fd} {
    if {$::redis::shim_depth == 0} {
        set ::redis::shim_state waiting
        fileevent $fd readable {set ::redis::shim_state readable}
        set timer [after [expr {$::shim_patience * 1000}] {set ::redis::shim_state late}]
        vwait ::redis::shim_state
        after cancel $timer
        fileevent $fd readable {}
        if {$::redis::shim_state eq {late}} {error "assertion:no reply in $::shim_patience seconds"}
    }
    incr ::redis::shim_depth
    try {
        ::redis::shim_read_reply $id $fd
    } finally {
        incr ::redis::shim_depth -1
    }
}

# On a busy machine, conditions take longer than the suite waits for them.
rename wait_for_condition shim_wait_for_condition
proc wait_for_condition {maxtries delay e _else_ elsescript} {
    set tries [expr {max($maxtries, $::shim_patience * 1000 / $delay)}]
    uplevel 1 [list shim_wait_for_condition $tries $delay $e $_else_ $elsescript]
}

# A failed test leaves no connections and no transaction to the next test.
rename test shim_test
proc test {name code {okpattern undefined} {tags {}}} {
    set newest $::redis::id
    lassign [list $::num_passed $::num_failed $::num_aborted] passed failed aborted
    uplevel 1 [list shim_test $name $code $okpattern $tags]
    if {$::num_passed > $passed} {
        shim_result passed $name {}
    } elseif {$::num_failed > $failed} {
        shim_result failed $name [join [lrange [lindex $::tests_failed end] 1 end]]
        shim_clean_up $newest
    } elseif {$::num_aborted > $aborted} {
        tags_acceptable [concat $::tags $tags] why
        shim_result skipped $name $why
    }
}

proc shim_clean_up {newest} {
    set is_raw [r readingraw]
    for {set id [expr {$newest + 1}]} {$id <= $::redis::id} {incr id} {
        catch {::redis::redisHandle$id close}
    }
    reconnect
    if {$::shim_protocol != 2} {r hello $::shim_protocol}
    wait_for_blocked_clients_count 0
    r readraw $is_raw
}
