"""beanstalk's protocol: replies beside beanstalkd's, its client libraries, logins."""
